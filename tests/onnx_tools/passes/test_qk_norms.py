# SPDX-License-Identifier: Apache-2.0
"""Norms of the heads of Q and K with rotations behind them: what becomes one kernel, what does not, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from onnx import ModelProto
from padfree.onnx_tools import RewriteResult, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import HEADS, SIZE, PositionedBuilder, attributes
from .test_rotary import _half, _interleave

Step = Callable[[PositionedBuilder, str], str]
FEWER = 2


def rms(b: PositionedBuilder, x: str, epsilon: float = 1e-6) -> str:
    """As transformers writes the norms of Qwen3."""
    mean = b.op("ReduceMean", b.op("Mul", x, x), axes=[-1], keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(epsilon)))
    return b.op("Mul", b.op("Div", x, root), b.weight(SIZE, center=1.0))


def projection(b: PositionedBuilder, x: str, heads: int) -> str:
    """[B,S,heads,D], without a bias."""
    product = b.op("MatMul", x, b.weight(HIDDEN, heads * SIZE))
    return b.op("Reshape", product, b.axes(0, 0, heads, SIZE))


def with_bias(b: PositionedBuilder, x: str, heads: int) -> str:
    return b.op("Reshape", b.linear(x, HIDDEN, heads * SIZE), b.axes(0, 0, heads, SIZE))


@dataclass(frozen=True)
class Form:
    """How a layer is written: GEMMs, norms and rotations of Q, K and V."""

    q: Callable[[PositionedBuilder, str, int], str] = projection
    k: Callable[[PositionedBuilder, str, int], str] = projection
    v: Callable[[PositionedBuilder, str, int], str] = projection
    norm_q: Step = rms
    norm_k: Step = rms
    rotate_q: Step = _half
    rotate_k: Step = _half
    heads_first: bool = False  # whether heads are normed as [B,H,S,D], as in Gemma 3

    def layer(self) -> ModelProto:
        b = PositionedBuilder()
        x = b.embedding()
        q = self._heads(b, self.q(b, x, HEADS), self.norm_q)
        k = self._heads(b, self.k(b, x, FEWER), self.norm_k)
        v = self._repeat(b, b.op("Transpose", self.v(b, x, FEWER), perm=[0, 2, 1, 3]))
        causal = b.op("Add", b.padding_mask(), b.causal_mask())
        k = self._repeat(b, self.rotate_k(b, k))
        return with_output(b.attend(x, self.rotate_q(b, q), k, v, causal), b, TOKENS)

    def _heads(self, b: PositionedBuilder, x: str, norm: Step) -> str:
        if self.heads_first:
            return norm(b, b.op("Transpose", x, perm=[0, 2, 1, 3]))
        return b.op("Transpose", norm(b, x), perm=[0, 2, 1, 3])

    def _repeat(self, b: PositionedBuilder, x: str) -> str:
        wide = b.op("Expand", b.op("Unsqueeze", x, b.axes(2)), b.axes(1, 1, HEADS // FEWER, 1, 1))
        return b.op("Reshape", wide, b.axes(0, HEADS, -1, SIZE))


def reasons(result: RewriteResult) -> list[str]:
    return [miss.reason for item in result.report.passes if item.name == "norms of Q and K" for miss in item.missed]


FORMS = {
    "tokens first": Form(),
    "heads first": Form(heads_first=True),
    "biases": Form(with_bias, with_bias, with_bias),
    "a bias of K alone": Form(k=with_bias),
    "interleaved": Form(rotate_q=_interleave, rotate_k=_interleave),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", FORMS)
def test_one_gemm_and_one_kernel(form: str, interface: str) -> None:
    model = FORMS[form].layer()
    result = rewrite(model, interface=interface, strict=True)
    (node,) = attributes(result, "PadfreeQkNormRotary")
    pairing = b"interleaved" if form == "interleaved" else b"half"
    assert node.pop("epsilon") == pytest.approx(1e-6)
    assert node == {"num_heads": HEADS, "num_kv_heads": FEWER, "head_size": SIZE, "pairing": pairing}
    (attention,) = attributes(result)
    assert (attention["qkv_layout"], attention["has_qkv_bias"]) == (b"2HD", 0)
    gemms = [item for item in result.model.graph.node if item.op_type == "MatMul"]
    widths = {item.name: item.dims[-1] for item in result.model.graph.initializer if item.dims}
    assert [widths[item.input[1]] for item in gemms] == [(HEADS + 2 * FEWER) * SIZE, HIDDEN]
    assert "PadfreeRotary" not in result.report.plugins
    assert not reasons(result)
    assert_agree(model, result)


def _layer_norm(b: PositionedBuilder, x: str) -> str:
    return b.op("LayerNormalization", x, b.weight(SIZE, center=1.0), axis=-1, epsilon=1e-5)


def _other_rows(b: PositionedBuilder, x: str, heads: int) -> str:
    return projection(b, b.op("Tanh", x), heads)


def _tanh_of_gemm(b: PositionedBuilder, x: str, heads: int) -> str:
    return b.op("Tanh", projection(b, x, heads))


NEAR_MISSES = {
    "other epsilon": (Form(norm_k=lambda b, x: rms(b, x, 1e-4)), "whose norms differ in epsilon"),
    "other rows": (Form(v=_other_rows), "computed from different rows"),
    "no GEMM": (Form(v=_tanh_of_gemm), "is not the result of one GEMM"),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_keep_their_norms_and_say_why(name: str, interface: str) -> None:
    form, reason = NEAR_MISSES[name]
    model = form.layer()
    result = rewrite(model, interface=interface, strict=True)
    assert "PadfreeQkNormRotary" not in result.report.plugins
    assert result.report.plugins["PadfreeRotary"] == 2
    (text,) = reasons(result)
    assert reason in text
    assert_agree(model, result)


@pytest.mark.parametrize("norm", [_layer_norm, lambda b, x: b.op("Identity", x)])
def test_other_norms_and_none_are_no_near_misses(norm: Step) -> None:
    model = Form(norm_k=norm).layer()
    result = rewrite(model, strict=True)
    assert "PadfreeQkNormRotary" not in result.report.plugins
    assert not reasons(result)
    assert_agree(model, result)


def test_layers_that_share_weights_share_the_joined_ones() -> None:
    """Two layers with the same projections: one constant for both."""

    class SameWeights(PositionedBuilder):
        def __init__(self) -> None:
            super().__init__()
            self._kept: dict[tuple[int, ...], str] = {}

        def weight(self, *shape: int, center: float = 0.0) -> str:
            if shape not in self._kept:
                self._kept[shape] = super().weight(*shape, center=center)
            return self._kept[shape]

    b = SameWeights()
    x = b.embedding()
    for _ in range(2):
        heads = [b.op("Transpose", rms(b, projection(b, x, HEADS)), perm=[0, 2, 1, 3]) for _ in range(2)]
        v = b.op("Transpose", projection(b, x, HEADS), perm=[0, 2, 1, 3])
        x = b.attend(x, *(_half(b, item) for item in heads), v, b.padding_mask())
    model = with_output(x, b, TOKENS)
    result = rewrite(model, strict=True)
    nodes = {node.output[0]: node for node in result.model.graph.node}
    makers = [nodes[node.input[0]] for node in result.model.graph.node if node.op_type == "PadfreeQkNormRotary"]
    assert len(makers) == 2
    assert len({node.input[1] for node in makers}) == 1
    assert_agree(model, result)
