# SPDX-License-Identifier: Apache-2.0
"""The sizes derived for operators, in terms of batch and sequence, compared with those in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.importing import import_model

from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder
from tests.support.exports import session

Build = Callable[[EncoderBuilder, str], str]
BATCH, LENGTH = 3, 5


def quantize(builder: EncoderBuilder, x: str) -> tuple[str, str, str]:
    scale, zero = builder.constant(0.1), builder.constant(3, np.uint8)
    return builder.op("QuantizeLinear", x, scale, zero), scale, zero


def recurrent(op: str, gates: int, position: int) -> Build:
    def build(builder: EncoderBuilder, x: str) -> str:
        w, r = builder.weight(2, gates * 7, HIDDEN), builder.weight(2, gates * 7, 7)
        outputs = [f"{op}{i}" for i in range(3 if op == "LSTM" else 2)]
        x = builder.op("Transpose", x, perm=[1, 0, 2])
        node = helper.make_node(op, [x, w, r], outputs, hidden_size=7, direction="bidirectional", name="rnn")
        builder.nodes.append(node)
        return outputs[position]

    return build


def einsum(equation: str) -> Build:
    return lambda b, x: b.op("Einsum", x, x if "r" in equation else b.weight(HIDDEN, 4), equation=equation)


def top_k(builder: EncoderBuilder, x: str) -> str:
    builder.nodes.append(helper.make_node("TopK", [x, builder.axes(3)], ["values", "places"], axis=2, name="k"))
    return "places"


def scatter(builder: EncoderBuilder, x: str) -> str:
    positions = builder.constant([[0, 0], [1, 0]], np.int64)
    return builder.op("ScatterND", x, positions, builder.weight(2, HIDDEN))


CASES: dict[str, Build] = {
    "Einsum": einsum("bsd,de->bse"),
    "Einsum, implicit": einsum("bsd,de"),
    "Einsum, dots": einsum("...d,de->...e"),
    "Einsum, pairs": einsum("bld,brd->blr"),
    "Pad": lambda b, x: b.op("Pad", x, b.axes(0, 1, 0, 0, 2, 3)),
    "Pad, negative": lambda b, x: b.op("Pad", x, b.axes(0, -1, -2, 0, 1, -3)),
    "Slice and Pad": lambda b, x: b.op(
        "Pad", b.op("Slice", x, b.axes(1), b.axes(2**31 - 1), b.axes(1)), b.axes(0, 0, 0, 0, 1, 0)
    ),
    "Slice behind the end": lambda b, x: b.op("Slice", x, b.axes(9), b.axes(3), b.axes(2)),
    "Slice but the last": lambda b, x: b.op("Slice", x, b.axes(0), b.axes(-1), b.axes(1)),
    "TopK": top_k,
    "OneHot": lambda b, _: b.op(
        "OneHot", "input_ids", b.constant(6, np.int64), b.constant([0.0, 1.0]), axis=1
    ),
    "QuantizeLinear": lambda b, x: quantize(b, x)[0],
    "DequantizeLinear": lambda b, x: b.op("DequantizeLinear", *quantize(b, x)),
    "MatMulInteger": lambda b, x: b.op(
        "MatMulInteger", quantize(b, x)[0], b.constant(np.ones((HIDDEN, 4)), np.uint8)
    ),
    "MatMul by a vector": lambda b, x: b.op("MatMul", x, b.weight(HIDDEN)),
    "vector by MatMul": lambda b, x: b.op("MatMul", b.weight(HIDDEN), b.op("Transpose", x, perm=[0, 2, 1])),
    "LSTM": recurrent("LSTM", 4, 0),
    "LSTM, state": recurrent("LSTM", 4, 2),
    "GRU": recurrent("GRU", 3, 0),
    "RNN, state": recurrent("RNN", 1, 1),
    "GlobalAveragePool": lambda b, x: b.op("GlobalAveragePool", x),
    "Trilu": lambda b, x: b.op("Trilu", x, b.constant(1, np.int64)),
    "ScatterND": scatter,
    "ScatterElements": lambda b, x: b.op("ScatterElements", x, b.constant([[[0]]], np.int64), b.constant([[[2.0]]])),
    "GatherND": lambda b, x: b.op("GatherND", x, b.constant([[0, 1], [2, 0]], np.int64)),
    "GatherND in a batch": lambda b, x: b.op("GatherND", x, b.constant([[[0]], [[1]], [[1]]], np.int64), batch_dims=1),
    "InstanceNormalization": lambda b, x: b.op(
        "InstanceNormalization", b.op("Transpose", x, perm=[0, 2, 1]), b.weight(HIDDEN), b.weight(HIDDEN)
    ),
    "EyeLike": lambda b, _: b.op("EyeLike", "input_ids"),
    "CumSum": lambda b, x: b.op("CumSum", x, b.constant(1, np.int64)),
    "Cosh": lambda b, x: b.op("Cosh", x),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes(name: str) -> None:
    builder = EncoderBuilder()
    result = CASES[name](builder, builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids"))
    builder.op("Shape", result, output="sizes")
    builder.op("Cast", result, output="y", to=TensorProto.FLOAT)
    model = builder.model({"y": ["a"], "sizes": ["r"]})
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = import_model(Model(model))
    facts = analyse(graph)[graph.outputs[0]]
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH))
    wanted = session(model).run(["sizes"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    assert facts.shape is not None
    sizes = {"B": BATCH, "S": LENGTH}
    assert [size.evaluate(sizes.__getitem__) for size in facts.shape] == list(wanted)


def test_a_slice_between_both_ends_has_no_size_that_is_wrong_for_short_sequences() -> None:
    builder = EncoderBuilder()
    x = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids")
    builder.op("Slice", x, builder.axes(1), builder.axes(-1), builder.axes(1), output="y")
    graph = import_model(Model(builder.model({"y": ["a", "b", "c"]})))
    shape = analyse(graph)[graph.outputs[0]].shape
    assert shape is None or str(shape[1]) not in ("S + -2", "-2 + S")
