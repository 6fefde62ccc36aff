# SPDX-License-Identifier: Apache-2.0
"""Operators that TensorRT's parser does not take, written with others that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper


def spell_for_parser(model: ModelProto) -> None:
    """Rewrites what TensorRT 10's parser refuses although TensorRT can compute it, in place."""
    _drop_plain_reductions(model)
    _spell_identity_matrices(model)


def _drop_plain_reductions(model: ModelProto) -> None:
    """Drops the attribute from scatters that reduce nothing: the parser does not know it."""
    for node in model.graph.node:
        if node.op_type in ("ScatterND", "ScatterElements"):
            attributes = [item for item in node.attribute if (item.name, item.s) != ("reduction", b"none")]
            del node.attribute[:]
            node.attribute.extend(attributes)


def _spell_identity_matrices(model: ModelProto) -> None:
    """EyeLike becomes a comparison of rows and columns: the parser wants fixed sizes."""
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "EyeLike" or node.domain:
            nodes.append(node)
            continue
        of = {item.name: item.i for item in node.attribute}
        kind = of.get("dtype") or types.get(node.input[0]) or TensorProto.FLOAT
        numbers, constants = _identity_matrix(node.input[0], node.output[0], of.get("k", 0), kind)
        model.graph.initializer.extend(numbers)
        nodes += constants
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _identity_matrix(like: str, result: str, diagonal: int, kind: int) -> tuple[list[TensorProto], list[NodeProto]]:
    """Ones of a type where column - row is `diagonal`, in a matrix of the sizes of `like`."""
    nodes: list[NodeProto] = []

    def op(operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    numbers = {"zero": 0, "one": 1, "first_axis": [0], "second_axis": [1], "diagonal": diagonal}
    names = {name: f"{result}_{name}" for name in numbers}
    shape = op("Shape", [like], f"{result}_shape")

    def indices(name: str, index: str, axis: str) -> str:
        size = op("Gather", [shape, names[index]], f"{result}_{name}_size")
        indices = op("Range", [names["zero"], size, names["one"]], f"{result}_{name}_places")
        return op("Unsqueeze", [indices, names[axis]], f"{result}_{name}")

    rows = op("Add", [indices("rows", "zero", "second_axis"), names["diagonal"]], f"{result}_ones")
    same = op("Equal", [rows, indices("columns", "one", "first_axis")], f"{result}_same")
    op("Cast", [same], result, to=kind)
    constants = [numpy_helper.from_array(np.asarray(value, np.int64), names[name]) for name, value in numbers.items()]
    return constants, nodes
