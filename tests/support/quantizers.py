# SPDX-License-Identifier: Apache-2.0
"""Quantised files in the forms that ModelOpt gives them, made of float ones: of ONNX files, and exported from torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

KINDS = {"e4m3": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}
FORMS = ("stored", "rounded")
"""Weights are stored quantised, before a DequantizeLinear, or as floats before QuantizeLinear and DequantizeLinear."""
ACTIVATION_SCALE = 0.05


class Quantizer:
    """Writes Q/DQ around GEMMs with weights, and before Adds of two activations, as ModelOpt does."""

    def __init__(self, kind: str, form: str) -> None:
        self.kind, self.form = kind, form
        self.weights: dict[str, np.ndarray] = {}  # the values that they represent, by the initializer's name
        self.pairs = 0  # of Q/DQ on activations
        self._number = 0

    def apply(self, original: ModelProto) -> ModelProto:
        model = ModelProto()
        model.CopyFrom(original)
        model.opset_import[0].version = 19
        graph, self._graph = model.graph, model.graph
        weights = {item.name: item for item in graph.initializer}
        nodes: list[onnx.NodeProto] = []
        self._nodes = nodes
        for node in list(graph.node):
            constant = [name for name in node.input if name in weights]
            if node.op_type == "MatMul" and constant == [node.input[1]]:
                node.input[0] = self._pair(node.input[0], ACTIVATION_SCALE)
                node.input[1] = self._weight(weights[node.input[1]])
            elif node.op_type == "Add" and not constant and "MatMul" in "".join(node.input):
                node.input[0] = self._pair(node.input[0], ACTIVATION_SCALE)
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


class TorchQuantizer:
    """Writes Q/DQ as modelopt.torch's export does: at floats [N,K], followed by a Transpose.

    For e4m3 there are TensorRT's own nodes with one scale per tensor, for int8 standard ones with one per row.
    `smooth` multiplies what a GEMM reads by factors and divides its weight by them (SmoothQuant); if several GEMMs
    read the same, an Identity passes on the first one's. `rounds`: whether activations are rounded, too.
    """

    def __init__(self, kind: str, *, rounds: bool = True, smooth: bool = False) -> None:
        self.kind, self.rounds, self.smooth = kind, rounds, smooth
        self.weights: dict[str, np.ndarray] = {}  # what they represent, by the name of the float model's initializer
        self.pairs = 0  # of Q/DQ on activations
        self._factors: dict[str, str] = {}

    def apply(self, original: ModelProto) -> ModelProto:
        self._model = ModelProto()
        self._model.CopyFrom(original)
        graph = self._model.graph
        weights = {item.name: item for item in graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        for node in list(graph.node):
            if node.op_type == "MatMul" and node.input[1] in weights:
                self._quantize_matmul(node, numpy_helper.to_array(weights[node.input[1]]))
            self._nodes.append(node)
        del graph.node[:]
        graph.node.extend(self._nodes)
        if self.kind == "e4m3":
            self._model.opset_import.append(helper.make_opsetid("trt", 1))
        return self._model

    def _quantize_matmul(self, node: onnx.NodeProto, weight: np.ndarray) -> None:
        name, x = node.input[1], node.input[0]
        factors = np.ones(len(weight), np.float32)
        if self.smooth:
            factors = np.exp2(np.arange(len(weight)) % 5 - 2).astype(np.float32)
            held = self._constant(f"{name}_factors", factors)
            if x in self._factors:
                held = self._node("Identity", f"{name}_shared", self._factors[x])
            self._factors.setdefault(x, held)
            node.input[0] = self._node("Mul", f"{name}_smooth", x, held)
        if self.rounds:
            self.pairs += 1
            node.input[0] = self._pair(f"{name}_input", node.input[0], np.array(ACTIVATION_SCALE, np.float32))
        rows = np.ascontiguousarray((weight / factors[:, np.newaxis]).T)
        largest = np.abs(rows).max(1) if self.kind == "int8" else np.abs(rows).max()
        scale = (largest / (127 if self.kind == "int8" else 448)).astype(np.float32)
        over_rows = scale.reshape(-1, 1) if scale.ndim else scale
        if self.kind == "int8":
            stored = np.clip(np.rint(rows / over_rows), -128, 127).astype(np.float32)
        else:
            stored = (rows / over_rows).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        self.weights[name] = np.ascontiguousarray((stored * over_rows).T) * factors[:, np.newaxis]
        wide = self._pair(f"{name}_rows", self._constant(f"{name}_held", rows), scale)
        node.input[1] = self._node("Transpose", f"{name}_turned", wide, perm=[1, 0])

    def _pair(self, name: str, x: str, scale: np.ndarray) -> str:
        held = self._constant(f"{name}_scale", scale)
        if self.kind == "e4m3":
            stored = self._node("TRT_FP8QuantizeLinear", f"{name}_stored", x, held, domain="trt")
            kind = helper.make_tensor_value_info(stored, TensorProto.UINT8, None)
            self._model.graph.value_info.append(kind)  # as torch writes it
            return self._node("TRT_FP8DequantizeLinear", f"{name}_wide", stored, held, domain="trt")
        zero = self._constant(f"{name}_zero", np.zeros(scale.shape, np.int8))
        axis = {"axis": 0} if scale.ndim else {}
        stored = self._node("QuantizeLinear", f"{name}_stored", x, held, zero, **axis)
        return self._node("DequantizeLinear", f"{name}_wide", stored, held, zero, **axis)

    def _constant(self, name: str, values: np.ndarray) -> str:
        self._model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name


def with_weights(original: ModelProto, weights: dict[str, np.ndarray]) -> ModelProto:
    """The model with other weights."""
    result = ModelProto()
    result.CopyFrom(original)
    for tensor in result.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return result
