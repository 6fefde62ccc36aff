# SPDX-License-Identifier: Apache-2.0
"""Files with Q/DQ around products: what is left of them, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.unquantized import holds_quantization, without_quantization
from padfree.onnx_tools.quantization.e4m3 import quantized_rows
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import run

KINDS = {"e4m3": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}
FORMS = ("stored", "rounded")
"""Weights as they are stored, in front of a DequantizeLinear, or as floats in front of both."""


class Quantizer:
    """Writes Q/DQ around products of weights and in front of Adds of two activations, as ModelOpt does."""

    def __init__(self, kind: str, form: str) -> None:
        self.kind, self.form = kind, form
        self.weights: dict[str, np.ndarray] = {}  # what they stand for, by the name of the initializer
        self.pairs = 0  # on activations
        self._number = 0

    def apply(self, given: ModelProto) -> ModelProto:
        model = ModelProto()
        model.CopyFrom(given)
        model.opset_import[0].version = 19
        graph, self._graph = model.graph, model.graph
        weights = {item.name: item for item in graph.initializer}
        nodes: list[onnx.NodeProto] = []
        self._nodes = nodes
        for node in list(graph.node):
            constant = [name for name in node.input if name in weights]
            if node.op_type == "MatMul" and constant == [node.input[1]]:
                node.input[0] = self._pair(node.input[0], 0.05)
                node.input[1] = self._weight(weights[node.input[1]])
            elif node.op_type == "Add" and not constant and "MatMul" in "".join(node.input):
                node.input[0] = self._pair(node.input[0], 0.05)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        return model

    def _constant(self, values: np.ndarray, kind: int | None = None) -> str:
        self._number += 1
        name = f"q{self._number}"
        if kind is None:
            self._graph.initializer.append(numpy_helper.from_array(values, name))
        else:
            self._graph.initializer.append(helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True))
        return name

    def _zero(self, *shape: int) -> str:
        return self._constant(np.zeros(shape, np.int8), KINDS[self.kind])

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        self._number += 1
        name = f"{op}_{self._number}"
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _pair(self, x: str, scale: float) -> str:
        self.pairs += 1
        held = self._constant(np.array(scale, np.float32))
        zero = self._zero()
        return self._node("DequantizeLinear", self._node("QuantizeLinear", x, held, zero), held, zero)

    def _weight(self, tensor: TensorProto) -> str:
        values = numpy_helper.to_array(tensor)
        largest = 448.0 if self.kind == "e4m3" else 127.0
        scale = (np.abs(values).max(0) / largest).astype(np.float32)
        if self.kind == "e4m3":
            stored = (values / scale).astype(ml_dtypes.float8_e4m3fn)
        else:
            stored = np.rint(values / scale).astype(np.int8)
        self.weights[tensor.name] = stored.astype(np.float32) * scale
        held, zero = self._constant(scale), self._zero(*scale.shape)
        if self.form == "rounded":
            narrow = self._node("QuantizeLinear", tensor.name, held, zero, axis=1)
        else:
            narrow = self._constant(stored, KINDS[self.kind])
        return self._node("DequantizeLinear", narrow, held, zero, axis=1)


@pytest.fixture(scope="module")
def original() -> ModelProto:
    return bert_model(1, 64, 2, 128, 50, 32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_has_the_weights_of_the_file(original: ModelProto, kind: str, form: str) -> None:
    """Bit by bit, wherever they came from; and it packs as the float model does."""
    quantizer = Quantizer(kind, form)
    given = quantizer.apply(original)
    assert holds_quantization(given)
    plain = ModelProto()
    plain.CopyFrom(original)
    for tensor in plain.graph.initializer:
        if tensor.name in quantizer.weights:
            tensor.CopyFrom(numpy_helper.from_array(quantizer.weights[tensor.name], tensor.name))
    result = rewrite(given)
    assert result.report.complete
    wanted = rewrite(plain).model
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in wanted.graph.node]
    assert quantizer.pairs > len(quantizer.weights)
    assert read_metadata(result.model)["unquantized"] == {
        "types": [kind],
        "weights": len(quantizer.weights),
        "activations": quantizer.pairs,
    }
    rng = np.random.default_rng(0)
    feeds = {
        "input_ids": rng.integers(0, 50, 12).astype(np.int32),
        "token_type_ids": np.zeros(12, np.int32),
        "seq_lens": np.array([5, 7], np.int32),
    }
    for a, b in zip(run(result.model, feeds), run(wanted, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_models_without_it_stay(original: ModelProto) -> None:
    assert not holds_quantization(original)
    assert "unquantized" not in read_metadata(rewrite(original, verify=False).model)


def changed(original: ModelProto, change: Any) -> ModelProto:
    model = Quantizer("int8", "stored").apply(original)
    change(model.graph)
    return model


def set_scale(graph: onnx.GraphProto, value: float) -> None:
    name = next(node.input[1] for node in graph.node if node.op_type == "DequantizeLinear")
    tensor = next(item for item in graph.initializer if item.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.full(tuple(tensor.dims), value, np.float32), name))


def computed_scale(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear")
    node.input[1] = "attention_mask"


def blocks(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear")
    node.attribute.append(helper.make_attribute("block_size", 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: set_scale(graph, 0.0), "has the scale 0, allowed are finite numbers above 0"),
        (lambda graph: set_scale(graph, float("nan")), "has the scale nan, allowed are finite numbers above 0"),
        (lambda graph: set_scale(graph, float("inf")), "has the scale inf"),
        (computed_scale, "'attention_mask', which is computed: only constant scales are understood"),
        (blocks, "has scales for blocks of 32 numbers; rewrite the float model that the file was quantised from"),
    ],
)
def test_what_is_not_understood_is_refused(original: ModelProto, change: Any, message: str) -> None:
    with pytest.raises(RewriteError, match=message):
        without_quantization(Model(changed(original, change)))


def test_weights_in_e4m3_come_out_as_they_were(original: ModelProto) -> None:
    """Their largest number is e4m3's largest, so that the new scale is the old one.

    On the way they are fp16: a stored number times its scale with 11 bits, which rounding to 3 bits undoes.
    """
    quantizer = Quantizer("e4m3", "stored")
    quantizer.apply(original)
    for values in quantizer.weights.values():
        stored, old = quantized_rows(np.ascontiguousarray(values.T))
        rows, scale = quantized_rows(np.ascontiguousarray(values.astype(np.float16).astype(np.float32).T))
        assert (rows.view(np.uint8) == stored.view(np.uint8)).mean() > 0.999
        np.testing.assert_allclose(scale, old, rtol=2.0**-10)
