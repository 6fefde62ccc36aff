# SPDX-License-Identifier: Apache-2.0
"""Writes the nodes of a function body: names, constants, casts, and what differs between opsets 14 and 23."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from .spec import AttributeValue, OperatorSpec

_E4M3_OPSET = 19


class BodyBuilder:
    """Collects the nodes of one function body. Every method returns the name of the value that it makes.

    Values inside a body: indices and sizes are int64, activations float32 (`load` casts, `output` casts back). A node
    that exists is reused, because a session prepares every node of every call of a function.
    """

    def __init__(self, spec: OperatorSpec, attributes: Mapping[str, AttributeValue], opset: int, act_type: int) -> None:
        self.spec = spec
        self.attributes = attributes
        self.opset = opset
        self.act_type = act_type
        self.nodes: list[NodeProto] = []
        self._outputs_by_node: dict[tuple[bytes, int], list[str]] = {}  # a node without its outputs -> its outputs

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.ops(op_type, *inputs, count=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """A node with `count` outputs."""
        return self._outputs(helper.make_node(op_type, inputs, [], **attributes), count)

    def _outputs(self, node: NodeProto, count: int) -> list[str]:
        """Adds a node and names its outputs, unless there is an equal one; returns the outputs' names."""
        key = node.SerializeToString(deterministic=True), count
        if key not in self._outputs_by_node:
            outputs = [f"{node.op_type}_{len(self.nodes)}_{index}" for index in range(count)]
            node.output.extend(outputs)
            self.nodes.append(node)
            self._outputs_by_node[key] = outputs
        return self._outputs_by_node[key]

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """A constant."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def attribute(self, name: str) -> str:
        """The node's attribute as a scalar: int64 or float32."""
        is_int = self.spec.attribute(name).type == "int"
        return self._op_with_reference("Constant", [], "value_int" if is_int else "value_float", name, is_int)

    def _op_with_reference(
        self, op_type: str, inputs: Sequence[str], key: str, reference: str, is_int: bool, **attributes: Any
    ) -> str:
        node = helper.make_node(op_type, inputs, [], **attributes)
        kind = AttributeProto.INT if is_int else AttributeProto.FLOAT
        node.attribute.append(AttributeProto(name=key, type=kind, ref_attr_name=reference))
        return self._outputs(node, 1)[0]

    def load(self, name: str) -> str:
        """An activation input as float32."""
        return name if self.act_type == TensorProto.FLOAT else self.op("Cast", name, to=TensorProto.FLOAT)

    def load_index(self, name: str) -> str:
        """An int32 input as int64."""
        return self.op("Cast", name, to=TensorProto.INT64)

    def output(self, name: str, value: str) -> None:
        """Makes `value` (float32) the activation output `name`."""
        self.nodes.append(helper.make_node("Cast", [value], [name], to=self.act_type))

    def load_e4m3(self, name: str) -> str:
        """A float8e4m3fn input as float32, which represents all its numbers exactly."""
        self._check_e4m3()
        return self.op("Cast", name, to=TensorProto.FLOAT)

    def output_e4m3(self, name: str, value: str, scale: str) -> None:
        """Makes `value` (float32) times 1 / `scale` (a float32 scalar), saturated, the float8e4m3fn output `name`."""
        self._check_e4m3()
        scaled = self.op("Mul", value, self.op("Div", self.const(1.0, np.float32), scale))
        self.nodes.append(helper.make_node("Cast", [scaled], [name], to=TensorProto.FLOAT8E4M3FN, saturate=1))

    def output_int8(self, name: str, value: str) -> None:
        """Makes `value` (float32), rounded to nearest even and saturated, the int8 output `name`; NaN becomes 0."""
        numbers = self.where_or_zero(self.op("Not", self.op("IsNaN", value)), self.op("Round", value))
        ends = (self.const(end, np.float32) for end in (-128.0, 127.0))
        self.nodes.append(helper.make_node("Cast", [self.op("Clip", numbers, *ends)], [name], to=TensorProto.INT8))

    def output_results(self, value: str) -> None:
        """Makes `value` (float32) the outputs that `results` asks for: y, y_e4m3 of rounded numbers, y_fp32."""
        results = self.attributes["results"]
        if results in ("act", "both", "act_fp32"):
            self.output("y", value)
        if results in ("fp32", "act_fp32"):
            self.output_as_is("y_fp32", value)
        if results not in ("e4m3", "both"):
            return
        self._check_e4m3()
        rounded = "y" if results == "both" else self.op("Cast", value, to=self.act_type)
        # Up to opset 22, the scale must have the type of the numbers that are quantised.
        scale = self.op("Cast", self.attribute("y_scale"), to=self.act_type)
        zero = self.op("Constant", value=helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]))
        self.nodes.append(helper.make_node("QuantizeLinear", [rounded, scale, zero], ["y_e4m3"]))

    def _check_e4m3(self) -> None:
        if self.opset < _E4M3_OPSET:
            raise RewriteError(
                f"{self.spec.name} with e4m3 needs opset {_E4M3_OPSET} or newer, the model has {self.opset}; convert "
                "it with onnx.version_converter, or export it again"
            )

    def output_index(self, name: str, value: str) -> None:
        """Makes `value` (int64) the int32 output `name`."""
        self.nodes.append(helper.make_node("Cast", [value], [name], to=TensorProto.INT32))

    def output_as_is(self, name: str, value: str) -> None:
        """Makes `value` the output `name`, whatever its type."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def reduce(self, op_type: str, value: str, axis: int, *, keepdims: bool = False) -> str:
        """Reduces one axis; axes became an input of ReduceMax and ReduceMean in opset 18, and of ReduceSum in 13."""
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.op(op_type, value, self.const([axis]), keepdims=int(keepdims))
        return self.op(op_type, value, axes=[axis], keepdims=int(keepdims))

    def dim(self, value: str, axis: int) -> str:
        """One dimension as int64 [1]."""
        return self.op("Gather", self.op("Shape", value), self.const([axis]))

    def dims_from(self, value: str, axis: int) -> str:
        """The dimensions from `axis` on as int64 [n]."""
        end = self.const([np.iinfo(np.int64).max])
        return self.op("Slice", self.op("Shape", value), self.const([axis]), end)

    def flat(self, value: str) -> str:
        """All elements along one axis."""
        return self.op("Reshape", value, self.const([-1]))

    def as_vector(self, scalar: str) -> str:
        """A scalar as [1]."""
        return self.op("Reshape", scalar, self.const([1]))

    def as_scalar(self, vector: str) -> str:
        """[1] as a scalar."""
        return self.op("Squeeze", vector, self.const([0]))

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Inserts axes of size 1."""
        return self.op("Unsqueeze", value, self.const(axes))

    def reshape(self, value: str, *dims: str) -> str:
        """Reshapes to dimensions that are all given, where 0 means 0 (each argument is int64 [n])."""
        shape = self.op("Concat", *dims, axis=0) if len(dims) > 1 else dims[0]
        return self.op("Reshape", value, shape, allowzero=1)

    def range(self, count: str) -> str:
        """0 .. count-1, count being int64 [1]."""
        return self.op("Range", self.const(0), self.as_scalar(count), self.const(1))

    def fill(self, count: str, value: int) -> str:
        """int64 [count] of one value, count being int64 [1]."""
        return self.op("ConstantOfShape", count, value=numpy_helper.from_array(np.array([value], np.int64)))

    def where_or_zero(self, condition: str, value: str) -> str:
        """float32 `value` where the condition holds, else 0: unlike a product it lets no NaN through."""
        return self.op("Where", condition, value, self.const(0.0, np.float32))

    def gather_rows(self, rows: str, index: str) -> str:
        """rows[index] along axis 0, for rows [N,...] of any type; an index below 0 or from N on gives zeros."""
        count = self.dim(rows, 0)
        inside = self.op(
            "And",
            self.op("GreaterOrEqual", index, self.const(0)),
            self.op("Less", index, count),
        )
        padded = self.op("Concat", rows, self._zero_row(rows), axis=0)
        return self.op("Gather", padded, self.op("Where", inside, index, count), axis=0)

    def _zero_row(self, rows: str) -> str:
        """Zeros [1,...] in the type of `rows`. Opset 14 has no CastLike: there they are a sum over no rows."""
        if self.opset < 15:
            none = self.op("Slice", rows, self.const([0]), self.const([0]), self.const([0]))
            return self.reduce("ReduceSum", none, 0, keepdims=True)
        shape = self.op("Concat", self.const([1]), self.dims_from(rows, 1), axis=0)
        return self.op("CastLike", self.op("ConstantOfShape", shape), rows)

    def norm(self, value: str, gamma: str, beta: str | None, *, rms: bool) -> str:
        """Layer norm or RMS norm over the last axis with the node's epsilon."""
        if not rms and self.opset >= 17:
            inputs = [value, gamma] if beta is None else [value, gamma, beta]
            return self._op_with_reference("LayerNormalization", inputs, "epsilon", "epsilon", False, axis=-1)
        if not rms:
            value = self.op("Sub", value, self.reduce("ReduceMean", value, -1, keepdims=True))
        square = self.reduce("ReduceMean", self.op("Mul", value, value), -1, keepdims=True)
        root = self.op("Sqrt", self.op("Add", square, self.attribute("epsilon")))
        scaled = self.op("Mul", self.op("Div", value, root), gamma)
        return scaled if beta is None else self.op("Add", scaled, beta)
