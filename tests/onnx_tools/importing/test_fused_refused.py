# SPDX-License-Identifier: Apache-2.0
"""Fused operators that are not imported are refused by name; branches that depend on no input are resolved."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.importing.fused import IMPORTERS

from tests.support.messages import widen

from .fused_nodes import BATCH, HEADS, LENGTHS, NONE, SIZE, TOLERANCE, WIDTH, X, expand, numbers, one_node, run

WEIGHT = numbers(WIDTH, 3 * WIDTH)
NORM = {"x": X, "skip": X, "gamma": numbers(WIDTH)}
HEADS_GIVEN = {"num_heads": HEADS}
STARTS = np.concatenate([LENGTHS, 0 * LENGTHS])
CACHE = numbers(20, SIZE // 2)
REFUSED: dict[str, tuple[str, dict[str, np.ndarray], dict[str, Any], str]] = {
    "past": (
        "Attention",
        {"x": X, "w": WEIGHT, "b": NONE, "m": NONE, "past": numbers(2, BATCH, HEADS, 3, SIZE)},
        HEADS_GIVEN,
        r"it reads past \(input 4\), which an encoder does not have",
    ),
    "present": (
        "Attention",
        {"x": X, "w": WEIGHT},
        {**HEADS_GIVEN, "outputs": (0, 1)},
        r"its present \(output 1\) is read",
    ),
    "rotary": ("Attention", {"x": X, "w": WEIGHT}, {**HEADS_GIVEN, "do_rotary": 1}, "it rotates Q and K itself"),
    "starts": (
        "Attention",
        {"x": X, "w": WEIGHT, "b": NONE, "m": STARTS},
        HEADS_GIVEN,
        r"its mask 'm' has 14 elements: lengths",
    ),
    "square": (
        "Attention",
        {"x": X, "w": WEIGHT, "b": NONE, "m": np.ones((BATCH, 1, 9, 9), np.int32)},
        HEADS_GIVEN,
        "its mask 'm' has 4 axes",
    ),
    "heads": ("Attention", {"x": X, "w": WEIGHT}, {"num_heads": 3}, "3 heads do not divide the widths"),
    "cross": (
        "MultiHeadAttention",
        {"q": X, "k": numbers(BATCH, HEADS, 9, SIZE), "v": numbers(BATCH, HEADS, 9, SIZE)},
        HEADS_GIVEN,
        "its key has 4 axes: keys of another sequence",
    ),
    "bias": (
        "MultiHeadAttention",
        {"q": X, "k": X, "v": X, "b": numbers(3 * WIDTH)},
        HEADS_GIVEN,
        "its bias 'b' is no constant",
    ),
    "statistics": ("SkipLayerNormalization", NORM, {"outputs": (0, 1)}, r"its mean \(output 1\) is read"),
    "axis": (
        "SimplifiedLayerNormalization",
        {"x": X, "gamma": X[0]},
        {"domain": "", "axis": 1},
        "not over the last axis alone",
    ),
    "scale": (
        "RotaryEmbedding",
        {"x": X, "p": np.zeros(1, np.int64), "c": CACHE, "s": CACHE},
        {"scale": 2.0},
        "scale of 2.0",
    ),
    "ragged": (
        "RotaryEmbedding",
        {"x": X, "p": np.zeros(1, np.int64), "c": CACHE, "s": CACHE},
        {"is_packed_batching": 1},
        "ragged batches",
    ),
    "activation": (
        "FusedGemm",
        {"a": numbers(4, 4), "b": numbers(4, 4)},
        {"activation": "ScaledTanh"},
        "its activation is 'Scaled",
    ),
    "quantised": ("QAttention", {"x": X}, {}, "it is quantised; rewrite the float model"),
    "four bits": ("MatMulNBitsMlp", {"x": X}, {}, "its weights are quantised; rewrite the float model"),
    "packing": (
        "RemovePadding",
        {"x": X},
        {},
        "it packs tokens in onnxruntime's own way; rewrite a file exported without",
    ),
    "decoder": ("DecoderMaskedMultiHeadAttention", {"x": X}, {}, "it is a decoder's attention; padfree rewrites"),
    "unknown": ("LongformerAttention", {"x": X}, {}, "known are Attention, BiasAdd"),
    "blocked channels": (
        "Conv",
        {"x": X},
        {"domain": "com.microsoft.nchwc"},
        "its tensors are arranged for one machine; save the optimised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    op, inputs, arguments, reason = REFUSED[name]
    model = one_node(op, inputs, **arguments)
    with pytest.raises(RewriteError, match=rf"node 'node' \(.*{op}\) cannot be imported: .*{reason}"):
        expand(model)


values = st.one_of(
    st.integers(-3, 40),
    st.floats(-2, 2),
    st.sampled_from(["Relu", ""]),
    st.lists(st.integers(-2, 20), min_size=1, max_size=4),
)
NAMES = (
    "num_heads",
    "qkv_hidden_sizes",
    "axis",
    "epsilon",
    "transA",
    "transBatchB",
    "activation",
    "interleaved",
    "scale",
)


@pytest.mark.slow
@settings(max_examples=120)
@given(
    st.sampled_from(sorted(IMPORTERS)),
    st.lists(st.lists(st.sampled_from([1, 2, 5, 7, 8, 16, 24, 48]), max_size=5), min_size=1, max_size=9),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4),
    st.booleans(),
)
def test_hostile_nodes(op: str, shapes: list[list[int]], attributes: dict[str, object], constant: bool) -> None:
    """Whatever a file claims, there is a result or one of the rewriter's errors."""
    inputs = {f"x{i}": np.zeros(shape, np.float32 if i < 7 else np.int32) for i, shape in enumerate(shapes)}
    weights = [name for name in inputs if constant and name != "x0"]
    with contextlib.suppress(RewriteError):
        expand(one_node(op, inputs, weights=weights, opset=14, **attributes))


@pytest.mark.parametrize("condition", [True, False])
def test_known_branches(condition: bool) -> None:
    """An If that depends only on sizes is replaced by its branch; a fused operator inside is imported too."""
    model, info = one_node("Gelu", {"x": X}), helper.make_empty_tensor_value_info
    gelu = model.graph.node.pop()
    gelu.output[0] = "inner"
    absolute = helper.make_node("Abs", ["x"], ["inner"])
    branches = [helper.make_graph([node], "branch", [], [info("inner")]) for node in (gelu, absolute)]
    model.graph.node.extend(
        [
            helper.make_node("Size", ["x"], ["size"]),
            helper.make_node("Equal", ["size", "size"], ["same"]),
            helper.make_node("Not", ["same"], ["other"]),
            helper.make_node("If", ["same" if condition else "other"], ["y0"], then_branch=branches[0],
                             else_branch=branches[1]),
        ]
    )  # fmt: skip
    result = expand(model)
    ops = {node.op_type for node in result.graph.node}
    assert ("Erf" in ops, "Abs" in ops, "If" in ops) == (condition, not condition, False)
    assert np.allclose(run(model, {"x": X}, [0])[0], run(result, {"x": X}, [0])[0], atol=TOLERANCE)


def test_branches_in_half_precision() -> None:
    info = helper.make_empty_tensor_value_info
    names = ("then_branch", "else_branch")
    branches = []
    for name in names:
        number = helper.make_node("Constant", [], [f"{name}_n"], value=numpy_helper.from_array(np.ones(1, np.float16)))
        cast = helper.make_node("Cast", [f"{name}_n"], [f"{name}_y"], to=TensorProto.FLOAT16)
        branches.append(helper.make_graph([number, cast], name, [], [info(f"{name}_y")]))
    model = one_node("Gelu", {"x": X})
    choice = helper.make_node("If", ["x"], ["y1"], **dict(zip(names, branches, strict=True)))
    model.graph.node.append(choice)
    for attribute in widen(model).graph.node[-1].attribute:
        number, cast = attribute.g.node
        assert number.attribute[0].t.data_type == TensorProto.FLOAT
        assert cast.attribute[0].i == TensorProto.FLOAT
