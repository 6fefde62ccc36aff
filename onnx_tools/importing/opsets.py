# SPDX-License-Identifier: Apache-2.0
"""Opsets other than those that padfree writes: old ones are raised node by node, new ones lowered where nothing is new.

The weights are not touched, and every rule is exact: a node that it cannot express is refused. ONNX's own converter
copies the weights, and writes every old Softmax over a flattened tensor, whose sizes are then lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper

from ..errors import RewriteError
from ..files import MessageBuilder, all_graphs, copy_message, replace_items
from ..operators import MAX_OPSET, MIN_OPSET
from .skeleton import Names, Types, infer, skeleton_of

FLOOR = 7  # below it, operators have attributes for broadcasting, and for training or inference

Nodes = list[NodeProto]


def to_known_opset(model: ModelProto, version: int) -> int:
    """Brings a model whose standard operators are of `version` into an opset that padfree writes, in place; returns it.

    Raises RewriteError for opsets below FLOOR, and for operators that mean something else in the other opset.
    """
    if MIN_OPSET <= version <= MAX_OPSET:
        return version
    if version < FLOOR:
        raise RewriteError(f"the model's opset is {version}, allowed is {FLOOR} or more; export it again with opset 17")
    names = Names(model.graph)
    change = _Converter(version, _types(model), names).raise_version
    if version > MAX_OPSET:
        change = partial(_lower_version, version=version, names=names)
    for holder in reversed(list(all_graphs(model.graph, *model.functions))):
        replace_items(holder.node, [new for node in holder.node for new in change(node)])
    return min(max(version, MIN_OPSET), MAX_OPSET)


def _types(model: ModelProto) -> Types:
    """Types and shapes of the tensors, as far as ONNX infers them."""
    skeleton = skeleton_of(model)
    types = {value.name: value.type.tensor_type for value in skeleton.graph.input}
    try:
        return types | infer(skeleton)
    except onnx.shape_inference.InferenceError:
        return types  # a later check says what is wrong


def _lower_version(node: NodeProto, version: int, names: Names) -> Nodes:
    """The nodes of MAX_OPSET that mean the same as one of a newer opset. Raises RewriteError where there are none.

    Up to opset 28, known operators only have new types, and new inputs and attributes that may be left out.
    """
    newest, older = _schema(node.op_type, version), _schema(node.op_type, MAX_OPSET)
    if node.domain or newest is None:
        return [node]
    if node.op_type == "Swish":
        return _swish(node, names)
    newer_attributes = [item for item in node.attribute if older is not None and item.name not in older.attributes]
    for item in newer_attributes:
        if item == newest.attributes[item.name].default_value:
            take_attribute(node, item.name)
    unknown = older is None or any(item.name not in older.attributes for item in node.attribute)
    if older is None or unknown or any(node.input[older.max_input :]):
        raise RewriteError(
            f"node '{node.name or ' '.join(node.output)}' ({node.op_type}) is one of opset {version} and has no equal "
            f"in opset {MAX_OPSET}, the newest that padfree writes; export the model with opset {MAX_OPSET} or lower"
        )
    return [node]


def _swish(node: NodeProto, names: Names) -> Nodes:
    """Swish with alpha 1: x sigmoid(x)."""
    x, result = node.input[0], node.output[0]
    alpha = next((item.f for item in node.attribute if item.name == "alpha"), 1.0)
    if alpha != 1.0 or any(item.ref_attr_name for item in node.attribute):
        raise RewriteError(
            f"node '{node.name or result}' (Swish) has the attribute alpha={alpha}, allowed is 1; export the model "
            f"with opset {MAX_OPSET} or lower"
        )
    new = MessageBuilder()
    new.op("Mul", x, new.op("Sigmoid", x, output=names.fresh(f"{result}_gate")), output=result)
    return list(new.graph.node)


def _schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    newest = min(version, onnx.defs.onnx_opset_version())
    return onnx.defs.get_schema(op, newest) if onnx.defs.has(op, newest) else None


@dataclass(frozen=True)
class _Converter:
    """Raises nodes of `version` to MIN_OPSET."""

    version: int
    types: Types
    names: Names

    def raise_version(self, node: NodeProto) -> Nodes:
        """The nodes that do in MIN_OPSET what the node does in `version`."""
        nodes = [node]
        if node.domain:
            return nodes
        for target in range(self.version + 1, MIN_OPSET + 1):
            nodes = [new for item in nodes for new in self._step(item, target)]
        return nodes

    def _step(self, node: NodeProto, target: int) -> Nodes:
        rule = _STEPS.get((node.op_type, target))
        return [node] if rule is None or node.domain else rule(self, node)

    def dtype(self, name: str) -> Any:
        """A tensor's element type: float32 where it is not known."""
        kind = self.types[name].elem_type if name in self.types else 0
        return helper.tensor_dtype_to_np_dtype(kind) if kind else np.dtype(np.float32)

    def attribute_to_input(self, node: NodeProto, attribute: str, position: int) -> Nodes:
        """The node with an attribute turned into its input `position`, after a Constant; itself where it has none."""
        value = take_attribute(node, attribute)
        if value is None:
            return [node]
        new, name = MessageBuilder(), self.names.fresh(f"{node.output[0]}_{attribute}")
        if value.ref_attr_name:
            kind = {AttributeProto.INTS: "value_ints", AttributeProto.FLOATS: "value_floats"}.get(value.type)
            if kind is None:
                raise _refusal(node, self.version, f"its attribute '{attribute}' comes from a function's")
            new.op("Constant", output=name)
            new.graph.node[0].attribute.add(name=kind, ref_attr_name=value.ref_attr_name, type=value.type)
        else:
            dtypes = {AttributeProto.FLOATS: np.float32, AttributeProto.FLOAT: self.dtype(node.input[0])}
            values = np.asarray(helper.get_attribute_value(value), dtypes.get(value.type, np.int64))
            new.op("Constant", output=name, value=numpy_helper.from_array(values))
        while len(node.input) < position:
            node.input.append("")
        del node.input[position:]
        node.input.append(name)
        return [*new.graph.node, node]


OpsetRule = Callable[[_Converter, NodeProto], Nodes]
"""The nodes that do in one opset what a node does in the opset before it."""


def take_attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """Removes an attribute and returns it."""
    for index, item in enumerate(node.attribute):
        if item.name == name:
            attribute: AttributeProto = copy_message(item)
            del node.attribute[index]
            return attribute
    return None


def _integer(node: NodeProto, name: str, default: int) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), default)


def _refusal(node: NodeProto, version: int, reason: str) -> RewriteError:
    return RewriteError(
        f"the model's opset is {version}, and node '{node.name or ' '.join(node.output)}' ({node.op_type}) has no "
        f"equal in opset {MIN_OPSET}: {reason}; export the model again with opset 17"
    )


def _batch_norm_9(converter: _Converter, node: NodeProto) -> Nodes:
    if _integer(node, "spatial", 1) != 1:
        raise _refusal(node, converter.version, "it has statistics for every position (spatial=0)")
    take_attribute(node, "spatial")
    return [node]


def _batch_norm_14(converter: _Converter, node: NodeProto) -> Nodes:
    if any(node.output[1:]):
        raise _refusal(node, converter.version, "it gives out statistics, as in training")
    del node.output[1:]
    return [node]


def _to_inputs(**positions: int) -> OpsetRule:
    """The rule that turns attributes into inputs, each at its position."""

    def rule(converter: _Converter, node: NodeProto) -> Nodes:
        before = Nodes()
        for name, position in positions.items():
            *more, node = converter.attribute_to_input(node, name, position)
            before += more
        return [*before, node]

    return rule


def _slice(converter: _Converter, node: NodeProto) -> Nodes:
    if any(item.ref_attr_name for item in node.attribute):
        raise _refusal(node, converter.version, "its limits come from a function's attributes")
    count = len(next(item.ints for item in node.attribute if item.name == "starts"))
    if not any(item.name == "axes" for item in node.attribute):
        node.attribute.append(helper.make_attribute("axes", list(range(count))))
    return _to_inputs(starts=1, ends=2, axes=3)(converter, node)


def _top_k(converter: _Converter, node: NodeProto) -> Nodes:
    attribute = next(item for item in node.attribute if item.name == "k")
    take_attribute(node, "k")
    node.attribute.append(helper.make_attribute("k", [int(attribute.i)]))
    return converter.attribute_to_input(node, "k", 1)


def _upsample_10(_: _Converter, node: NodeProto) -> Nodes:
    node.op_type = "Resize"
    return [node]


def _resize_11(_: _Converter, node: NodeProto) -> Nodes:
    """Keeps coordinates as they were: counted from the corner, and rounded down."""
    scales = node.input[1]
    del node.input[1:]
    node.input.extend(["", scales])
    node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    node.attribute.append(helper.make_attribute("nearest_mode", "floor"))
    return [node]


def _scatter(_: _Converter, node: NodeProto) -> Nodes:
    node.op_type = "ScatterElements"
    return [node]


def _dropout(_: _Converter, node: NodeProto) -> Nodes:
    """Drops the ratio, which changes nothing in inference."""
    take_attribute(node, "ratio")
    return [node]


def _dropout_10(converter: _Converter, node: NodeProto) -> Nodes:
    if any(node.output[1:]):
        raise _refusal(node, converter.version, "its mask is no bool tensor there")
    return [node]


def _softmax(converter: _Converter, node: NodeProto) -> Nodes:
    """The old operator treats all axes from `axis` on as one."""
    if any(item.ref_attr_name for item in node.attribute):
        raise _refusal(node, converter.version, "its axis comes from a function's attribute")
    axis, input_type = _integer(node, "axis", 1), converter.types.get(node.input[0])
    rank = len(input_type.shape.dim) if input_type is not None and input_type.HasField("shape") else None
    take_attribute(node, "axis")
    node.attribute.append(helper.make_attribute("axis", -1))
    if axis == -1 or (rank is not None and axis == rank - 1):
        return [node]
    x, result = node.input[0], node.output[0]
    sizes, flat, rows = (converter.names.fresh(f"{result}_{part}") for part in ("sizes", "flat", "rows"))
    before, after = MessageBuilder(), MessageBuilder()
    before.op("Shape", x, output=sizes)
    node.input[0], node.output[0] = before.op("Flatten", x, output=flat, axis=axis), rows
    after.op("Reshape", rows, sizes, output=result)
    return [*before.graph.node, node, *after.graph.node]


_STEPS: Mapping[tuple[str, int], OpsetRule] = MappingProxyType(
    {
        ("BatchNormalization", 9): _batch_norm_9,
        ("Upsample", 9): _to_inputs(scales=1),
        ("Dropout", 10): _dropout_10,
        ("Slice", 10): _slice,
        ("TopK", 10): _top_k,
        ("Upsample", 10): _upsample_10,
        ("Clip", 11): _to_inputs(min=1, max=2),
        ("Pad", 11): _to_inputs(pads=1, value=2),
        ("Resize", 11): _resize_11,
        ("Scatter", 11): _scatter,
        ("Dropout", 12): _dropout,
        **{(op, 13): _softmax for op in ("Hardmax", "LogSoftmax", "Softmax")},
        **{(op, 13): _to_inputs(axes=1) for op in ("ReduceSum", "Squeeze", "Unsqueeze")},
        ("Split", 13): _to_inputs(split=1),
        ("BatchNormalization", 14): _batch_norm_14,
    }
)
