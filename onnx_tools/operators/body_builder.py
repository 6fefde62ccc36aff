# SPDX-License-Identifier: Apache-2.0
"""Writes the nodes of a function body: names, constants, casts, and what differs between opsets 14 and 23."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from ..files import NodeBuilder
from .spec import AttributeValue, OperatorSpec

_E4M3_OPSET = 19


class BodyBuilder(NodeBuilder[str]):
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

    def ops(self, op_type: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """A node with `count` outputs."""
        return self._outputs(helper.make_node(op_type, inputs, [], **attributes), count)

    def _add(self, op: str, inputs: Sequence[str], output: str | None, stem: str, attributes: Mapping[str, Any]) -> str:
        del stem  # values of bodies have numbers
        if output is None:
            return self.ops(op, *inputs, count=1, **attributes)[0]
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

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

    def _constant(self, values: npt.NDArray[Any]) -> str:
        return self.const(values, values.dtype)

    def attribute(self, name: str) -> str:
        """The node's attribute as a scalar: int64 or float32."""
        is_int = self.spec.attribute(name).type == "int"
        return self._op_with_reference("Constant", [], "value_int" if is_int else "value_float", name, is_int)

    def attribute_vector(self, name: str) -> str:
        """The node's attribute as [1]."""
        return self.reshape(self.attribute(name), 1)

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
        self.op("Cast", value, output=name, to=self.act_type)

    def load_e4m3(self, name: str) -> str:
        """A float8e4m3fn input as float32, which represents all its numbers exactly."""
        self._check_e4m3()
        return self.op("Cast", name, to=TensorProto.FLOAT)

    def output_e4m3(self, name: str, value: str, scale: str) -> None:
        """Makes `value` (float32) times 1 / `scale` (a float32 scalar), saturated, the float8e4m3fn output `name`."""
        self._check_e4m3()
        scaled = self.op("Mul", value, self.op("Div", 1.0, scale))
        self.op("Cast", scaled, output=name, to=TensorProto.FLOAT8E4M3FN, saturate=1)

    def output_int8(self, name: str, value: str) -> None:
        """Makes `value` (float32), rounded to nearest even and saturated, the int8 output `name`; NaN becomes 0."""
        numbers = self.where_or_zero(self.op("Not", self.op("IsNaN", value)), self.op("Round", value))
        self.op("Cast", self.op("Clip", numbers, -128.0, 127.0), output=name, to=TensorProto.INT8)

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
        self.op("QuantizeLinear", rounded, scale, zero, output="y_e4m3")

    def _check_e4m3(self) -> None:
        if self.opset < _E4M3_OPSET:
            raise RewriteError(
                f"{self.spec.name} with e4m3 needs opset {_E4M3_OPSET} or newer, the model has {self.opset}; convert "
                "it with onnx.version_converter, or export it again"
            )

    def output_index(self, name: str, value: str) -> None:
        """Makes `value` (int64) the int32 output `name`."""
        self.op("Cast", value, output=name, to=TensorProto.INT32)

    def output_as_is(self, name: str, value: str) -> None:
        """Makes `value` the output `name`, whatever its type."""
        self.op("Identity", value, output=name)

    def dim(self, value: str, axis: int) -> str:
        """One dimension as int64 [1]."""
        return self.op("Gather", self.op("Shape", value), [axis])

    def dims_from(self, value: str, axis: int) -> str:
        """The dimensions from `axis` on as int64 [n]."""
        end = self.integers(np.iinfo(np.int64).max)
        return self.op("Slice", self.op("Shape", value), [axis], end)

    def reshape_to(self, value: str, *dims: str) -> str:
        """Reshapes to dimensions that are all given, where 0 means 0 (each argument is int64 [n])."""
        shape = self.op("Concat", *dims, axis=0) if len(dims) > 1 else dims[0]
        return self.op("Reshape", value, shape, allowzero=1)

    def range(self, count: str) -> str:
        """0 .. count-1, count being int64 [1]."""
        return self.count_to(self.along("Squeeze", count, 0))

    def fill(self, count: str, value: int) -> str:
        """int64 [count] of one value, count being int64 [1]."""
        return self.op("ConstantOfShape", count, value=numpy_helper.from_array(np.array([value], np.int64)))

    def where_or_zero(self, condition: str, value: str) -> str:
        """float32 `value` where the condition holds, else 0: unlike a product it lets no NaN through."""
        return self.op("Where", condition, value, 0.0)

    def gather_rows(self, rows: str, index: str) -> str:
        """rows[index] along axis 0, for rows [N,...] of any type; an index below 0 or from N on gives zeros."""
        count = self.dim(rows, 0)
        inside = self.op(
            "And",
            self.op("GreaterOrEqual", index, 0),
            self.op("Less", index, count),
        )
        padded = self.op("Concat", rows, self._zero_row(rows), axis=0)
        return self.op("Gather", padded, self.op("Where", inside, index, count), axis=0)

    def _zero_row(self, rows: str) -> str:
        """Zeros [1,...] in the type of `rows`. Opset 14 has no CastLike: there they are a sum over no rows."""
        if self.opset < 15:
            none = self.op("Slice", rows, [0], [0], [0])
            return self.along("ReduceSum", none, 0, keepdims=1)
        shape = self.op("Concat", [1], self.dims_from(rows, 1), axis=0)
        return self.op("CastLike", self.op("ConstantOfShape", shape), rows)

    def norm(self, value: str, gamma: str, beta: str | None, *, rms: bool) -> str:
        """Layer norm or RMS norm over the last axis with the node's epsilon."""
        if not rms and self.opset >= 17:
            inputs = [value, gamma] if beta is None else [value, gamma, beta]
            return self._op_with_reference("LayerNormalization", inputs, "epsilon", "epsilon", False, axis=-1)
        if not rms:
            value = self.op("Sub", value, self.along("ReduceMean", value, -1, keepdims=1))
        square = self.along("ReduceMean", self.op("Mul", value, value), -1, keepdims=1)
        root = self.op("Sqrt", self.op("Add", square, self.attribute("epsilon")))
        scaled = self.op("Mul", self.op("Div", value, root), gamma)
        return scaled if beta is None else self.op("Add", scaled, beta)
