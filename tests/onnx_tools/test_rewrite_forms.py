# SPDX-License-Identifier: Apache-2.0
"""The same meaning in other forms: each pass recognises it by what it computes, or leaves it padded and right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.onnx_tools import RewriteError, RewriteResult, rewrite

from tests.support.encoder import HEADS, HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output

from .agreement import INTERFACES, assert_agree, in_float64
from .evaluator import evaluate
from .random_models.random_graphs import with_stronger_masks

SIZE = HIDDEN // HEADS
IN_FLOAT64 = 1e-6  # what the rounding of sums of sums leaves; results of wrong graphs are far outside it
both = pytest.mark.parametrize("interface", INTERFACES)


def attributes(result: RewriteResult, op: str) -> list[dict[str, object]]:
    results = [node for node in result.model.graph.node if node.op_type == op]
    return [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in results]


class WrittenOut(EncoderBuilder):
    """Layer norm as written for opsets below 17."""

    power = 2.0

    def norm(self, x: str, width: int = HIDDEN) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.constant(self.power)), axes=[-1])
        root = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        scaled = self.op("Mul", self.op("Div", centred, root), self.weight(width, center=1.0))
        return self.op("Add", scaled, self.weight(width))


class FourthPower(WrittenOut):
    """Not a layer norm, though it nearly looks like one."""

    power = 4.0


@both
def test_layer_norm_written_out(interface: str) -> None:
    builder = WrittenOut()
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeEmbedding"] == 1
    norm = attributes(result, "PadfreeLayerNorm")[0]
    assert (norm["has_bias"], norm["has_residual"], norm["has_beta"], norm["has_sum"]) == (1, 1, 1, 0)
    assert not {"Sqrt", "ReduceMean", "Sub"} & {node.op_type for node in result.model.graph.node}
    assert_agree(model, result)


@both
def test_almost_layer_norm(interface: str) -> None:
    builder = FourthPower()
    model = with_output(builder.layer(builder.embedding(), builder.padding_mask()), builder, TOKENS)
    result = rewrite(model, interface=interface)
    assert "PadfreeLayerNorm" not in result.report.plugins
    assert "PadfreeEmbedding" not in result.report.plugins
    assert_agree(model, result)


@both
def test_sum_before_the_norm_is_kept(interface: str) -> None:
    builder, hidden = one_layer()
    mask = builder.padding_mask()
    total = builder.op("Add", builder.attention(builder.norm(hidden), mask), hidden)
    dense = builder.linear(builder.norm(total), HIDDEN, HIDDEN)
    model = with_output(builder.op("Add", dense, total), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert Counter(item["has_sum"] for item in attributes(result, "PadfreeLayerNorm")) == {0: 2, 1: 1}
    assert_agree(model, result)


@both
def test_norm_gives_out_its_statistics(interface: str) -> None:
    builder, hidden = one_layer()
    gamma = builder.weight(HIDDEN, center=1.0)
    node = onnx.helper.make_node("LayerNormalization", [hidden, gamma], ["normed", "mean"], axis=-1, name="stats")
    builder.nodes.append(node)
    model = with_output(builder.op("Mul", "normed", "mean"), builder, TOKENS)
    result = rewrite(model, interface=interface)
    missed = [miss.reason for item in result.report.passes if item.name == "layer norm" for miss in item.missed]
    assert any("gives out its statistics" in reason for reason in missed)
    assert_agree(model, result)


def fused_attention(builder: EncoderBuilder, x: str, by_head: bool) -> str:
    """Q, K and V by one MatMul, as [B,S,3,H,D] or [B,S,H,3,D]."""
    qkv = builder.linear(x, HIDDEN, 3 * HIDDEN)
    order = (HEADS, 3, SIZE) if by_head else (3, HEADS, SIZE)
    split = builder.op("Reshape", qkv, builder.axes(0, 0, *order))
    perm = [3, 0, 2, 1, 4] if by_head else [2, 0, 3, 1, 4]
    stacked = builder.op("Transpose", split, perm=perm)
    q, k, v = (builder.op("Gather", stacked, builder.constant(i, np.int64), axis=0) for i in range(3))
    scores = builder.op(
        "MatMul", builder.op("Div", q, builder.constant(3.0)), builder.op("Transpose", k, perm=[0, 1, 3, 2])
    )
    weights = builder.op("Softmax", builder.op("Add", scores, builder.padding_mask()), axis=-1)
    context = builder.op("Transpose", builder.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return builder.op("Reshape", context, builder.axes(0, 0, HIDDEN))


@both
@pytest.mark.parametrize(("by_head", "qkv_layout"), [(False, b"3HD"), (True, b"H3D")])
def test_one_projection(interface: str, by_head: bool, qkv_layout: bytes) -> None:
    builder = EncoderBuilder()
    model = with_output(fused_attention(builder, builder.embedding(), by_head), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    facts = attributes(result, "PadfreeAttention")[0]
    assert facts["qkv_layout"] == qkv_layout
    assert facts["scale"] == pytest.approx(1 / 3)
    assert Counter(node.op_type for node in result.model.graph.node)["MatMul"] == 1
    assert_agree(model, result)


@both
def test_projections_of_different_inputs(interface: str) -> None:
    builder, hidden = one_layer()
    other = builder.op("Tanh", hidden)
    q = builder.heads(builder.linear(hidden, HIDDEN, HIDDEN), [0, 2, 1, 3])
    k = builder.heads(builder.linear(other, HIDDEN, HIDDEN), [0, 2, 3, 1])
    v = builder.heads(builder.linear(other, HIDDEN, HIDDEN), [0, 2, 1, 3])
    kept = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(1, 2)), to=9)
    scores = builder.op("Where", kept, builder.op("MatMul", q, k), builder.constant(-np.inf))
    context = builder.op("MatMul", builder.op("Softmax", scores, axis=-1), v)
    joined = builder.op("Reshape", builder.op("Transpose", context, perm=[0, 2, 1, 3]), builder.axes(0, 0, HIDDEN))
    model = with_output(joined, builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert [item["qkv_layout"] for item in attributes(result, "PadfreeAttention")] == [b"3HD", b"separate"]
    assert_agree(model, result)


@both
@pytest.mark.parametrize("three_axes", [False, True])
def test_attention_operator(interface: str, three_axes: bool) -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    kept = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(1, 2)), to=9)
    length = builder.op("Shape", "input_ids", start=1)
    square = builder.op("Concat", builder.op("Shape", "input_ids", end=1), builder.axes(1), length, length, axis=0)
    mask = builder.op("Expand", kept, square)
    q, k, v = (builder.linear(x, HIDDEN, HIDDEN) for _ in range(3))
    if three_axes:
        context = builder.op("Attention", q, k, v, mask, q_num_heads=HEADS, kv_num_heads=HEADS, scale=0.3)
    else:
        q, k, v = (builder.heads(item, [0, 2, 1, 3]) for item in (q, k, v))
        context = builder.op("Transpose", builder.op("Attention", q, k, v, mask), perm=[0, 2, 1, 3])
        context = builder.op("Reshape", context, builder.axes(0, 0, HIDDEN))
    builder.op("Identity", context, output="y")
    model = builder.model({"y": TOKENS}, opset=23)
    result = rewrite(model, interface=interface, strict=True)
    scale = 0.3 if three_axes else SIZE**-0.5
    assert attributes(result, "PadfreeAttention")[0]["scale"] == pytest.approx(scale)
    assert_agree(model, result)


def test_heads_in_another_order() -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    q, k, v = (
        builder.op("Reshape", builder.linear(x, HIDDEN, HIDDEN), builder.axes(0, HEADS, -1, SIZE)) for _ in "qkv"
    )
    scores = builder.op("MatMul", q, builder.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = builder.op("Softmax", builder.op("Add", scores, builder.padding_mask()), axis=-1)
    context = builder.op("Reshape", builder.op("MatMul", weights, v), builder.axes(0, -1, HIDDEN))
    model = with_output(context, builder, TOKENS)
    with pytest.raises(RewriteError, match="Q mixes tokens"):
        rewrite(model)


@both
def test_attention_weights_as_an_output(interface: str) -> None:
    builder, hidden = one_layer()
    weights = next(node.output[0] for node in builder.nodes if node.op_type == "Softmax")
    builder.op("Identity", weights, output="weights")
    builder.op("Identity", hidden, output="y")
    model = builder.model({"y": TOKENS, "weights": ["batch", HEADS, "sequence", "sequence"]})
    result = rewrite(model, interface=interface, verify=False)
    assert result.report.outputs["weights"] == "padded"
    assert result.report.plugins["PadfreeAttention"] == 1


# Tails that do not mix tokens, tails that mix them in the order of slots, and tails that are safe because of the mask.
def _cumulative(builder: EncoderBuilder, x: str) -> str:
    return builder.op("CumSum", x, builder.constant(2, np.int64))


def _softmax(builder: EncoderBuilder, x: str) -> str:
    return builder.op("Softmax", x, axis=2)


def _transpose(builder: EncoderBuilder, x: str) -> str:
    return builder.op("Transpose", builder.op("Relu", builder.op("Transpose", x, perm=[2, 1, 0])), perm=[2, 1, 0])


def _merge(builder: EncoderBuilder, x: str) -> str:
    flat = builder.op("Reshape", x, builder.axes(-1, HIDDEN))
    return builder.op("Reshape", builder.op("Tanh", flat), builder.op("Shape", x))


def _mask(builder: EncoderBuilder, x: str) -> str:
    mask = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(2)), to=1)
    return builder.op("Mul", x, mask)


def _centre(builder: EncoderBuilder, x: str) -> str:
    total = builder.op("ReduceSum", _mask(builder, x), builder.axes(1), keepdims=1)
    return builder.op("Sub", x, total)


def _scale(builder: EncoderBuilder, x: str) -> str:
    return builder.op("Add", builder.op("Mul", x, builder.weight(HIDDEN)), builder.weight(1, 1, HIDDEN))


def _halves(builder: EncoderBuilder, x: str) -> str:
    first = builder.op("Slice", x, builder.axes(0), builder.axes(HIDDEN // 2), builder.axes(2))
    second = builder.op("Slice", x, builder.axes(HIDDEN // 2), builder.axes(HIDDEN), builder.axes(-1))
    return builder.op("Concat", second, first, axis=-1)


def _group(builder: EncoderBuilder, x: str) -> str:
    groups = builder.op("Reshape", x, builder.axes(0, 0, 4, HIDDEN // 4))
    largest = builder.op("ReduceMax", groups, axes=[3], keepdims=1)
    return builder.op("Reshape", builder.op("Sub", groups, largest), builder.axes(0, 0, HIDDEN))


def _from_first(builder: EncoderBuilder, x: str) -> str:
    return builder.op("Sub", x, builder.op("Slice", x, builder.axes(0), builder.axes(1), builder.axes(1)))


TAILS: tuple[Callable[[EncoderBuilder, str], str], ...] = (
    _cumulative, _softmax, _transpose, _merge, _mask, _centre, _scale, _halves, _group,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.sampled_from(TAILS), min_size=1, max_size=4), st.sampled_from(INTERFACES), st.booleans())
def test_any_tail(tails: list[Callable[[EncoderBuilder, str], str]], interface: str, another_layer: bool) -> None:
    builder, hidden = one_layer()
    for tail in tails:
        hidden = tail(builder, hidden)
    if another_layer:
        hidden = builder.layer(hidden, builder.padding_mask())
    # Sums of sums make scores from which -1e4 hides no padding, and which float32 may round to others.
    model = with_stronger_masks(with_output(hidden, builder, TOKENS))
    result = rewrite(model, interface=interface, verify=False)
    try:
        assert_agree(model, result)
    except AssertionError:
        assert_agree(model, result, run=in_float64(evaluate), tolerance=IN_FLOAT64)


def test_difference_to_the_first_token() -> None:
    builder, hidden = one_layer()
    model = with_output(_from_first(builder, hidden), builder, TOKENS)
    assert_agree(model, rewrite(model))


@both
def test_gates_of_experts_that_are_scattered(interface: str) -> None:
    """Every token keeps the weight of its best expert, and has zeros for the others."""
    builder, hidden = one_layer()
    gates = builder.op("Softmax", builder.linear(hidden, HIDDEN, 4), axis=-1)
    best, weight = builder.op("ArgMax", gates, axis=-1), builder.op("ReduceMax", gates, axes=[-1])
    none = builder.op("Mul", gates, builder.constant(0.0))
    chosen = builder.op("ScatterElements", none, best, weight, axis=-1)
    model = with_output(builder.op("MatMul", chosen, builder.weight(4, HIDDEN)), builder, TOKENS)
    assert_agree(model, rewrite(model, interface=interface, strict=True))


@both
def test_batch_norms_of_tokens(interface: str) -> None:
    """Over channels that come before the sequence, as in torch.nn.BatchNorm1d."""
    builder, hidden = one_layer()
    transposed = builder.op("Transpose", hidden, perm=[0, 2, 1])
    held = [builder.constant(np.linspace(low, 2, HIDDEN)) for low in (0.5, -1, 0, 1)]
    normed = builder.op("BatchNormalization", transposed, *held)
    model = with_output(builder.op("Transpose", normed, perm=[0, 2, 1]), builder, TOKENS)
    assert_agree(model, rewrite(model, interface=interface, strict=True))
