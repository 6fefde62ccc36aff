# SPDX-License-Identifier: Apache-2.0
"""Operators that take or write elements at indices that other tensors hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import dtype_name, made_by
from . import movement
from .arguments import argument_facts, axis_of
from .expr import Index, apply, axis_index, number, size_of
from .facts import MAX_EXPRESSION, Facts, InputFacts, Shape, are_constant
from .poly import Poly

Lookup = Callable[[gs.Tensor], Facts]


def gather_nd(node: gs.Node, input_facts: InputFacts, lookup: Lookup) -> Facts:
    """GatherND by indices that a Concat joined, with one column per axis."""
    concat = made_by(node.inputs[1], "Concat")
    shape, batch = input_facts[1].shape, int(node.attrs.get("batch_dims", 0))
    depth = shape[-1].constant() if shape else None
    result: Shape | None = None
    if shape is not None and depth is not None and input_facts[0].shape is not None:
        result = (*shape[:-1], *input_facts[0].shape[batch + depth :])
    constant = input_facts[0].constant and input_facts[1].constant
    unknown = Facts(result, input_facts[0].dtype, input_facts[0].uniform(), constant=constant)
    if batch or shape is None or concat is None:
        return unknown
    last = len(shape) - 1
    columns = [movement.squeeze(lookup(tensor), [last]) for tensor in concat.inputs if lookup(tensor).shape is not None]
    count = shape[-1].constant()
    if count is None or count != len(concat.inputs) or axis_of(concat, len(shape)) != last:
        return unknown
    if len(columns) != count or any(item.shape != shape[:-1] for item in columns):
        return unknown
    return movement.gather_nd(input_facts[0], columns, shape[:-1])


def trilu(node: gs.Node, input_facts: InputFacts) -> Facts:
    """Trilu: zeros on one side of a diagonal."""
    x, own_diagonal = input_facts[0], argument_facts(node, input_facts, 1)
    diagonal = [0] if own_diagonal is None else own_diagonal.plain_integers()
    facts = Facts(x.shape, x.dtype, constant=are_constant(input_facts))
    if x.expr is None or not x.shape or x.dtype is None or diagonal is None or size_of(x.expr) > MAX_EXPRESSION:
        return facts
    row, column = Index(axis_index(len(x.shape) - 2) + diagonal[0]), Index(axis_index(len(x.shape) - 1))
    is_inside = apply("GreaterOrEqual" if int(node.attrs.get("upper", 1)) else "LessOrEqual", (column, row), "bool")
    return replace(facts, expr=apply("Where", (is_inside, x.expr, number(np.zeros(1, x.dtype)[0], x.dtype)), x.dtype))


def scatter_nd(node: gs.Node, input_facts: InputFacts, lookup: Lookup) -> list[Facts]:
    """ScatterND; if every element goes to its own place, as exporters write x[:, :, :n] = y, it gives the updates."""
    data, updates, index = input_facts[0], input_facts[2], input_facts[1].shape
    plain = [Facts(data.shape, data.dtype, constant=are_constant(input_facts))]
    concat = made_by(node.inputs[1], "Concat")
    if concat is None or index is None or not data.shape or str(node.attrs.get("reduction", "none")) != "none":
        return plain
    count, last = len(concat.inputs), len(index) - 1
    whole = index == (*data.shape[:count], Poly.of(count)) and updates.shape == data.shape
    if not whole or axis_of(concat, len(index)) != last:
        return plain
    for axis, tensor in enumerate(concat.inputs):
        column = lookup(tensor)
        if column.shape != (*index[:-1], Poly.of(1)) or not isinstance(column.expr, Index):
            return plain
        if column.expr.poly != axis_index(axis) and data.shape[axis] != Poly.of(1):
            return plain
    return [updates]


def eye_like(node: gs.Node, x: Facts) -> Facts:
    """EyeLike: 1 where the column is `k` (usually 0) after the row, else 0."""
    dtype = dtype_name(node.attrs.get("dtype")) or x.dtype
    if dtype is None or x.shape is None or len(x.shape) != 2:
        return Facts(x.shape, dtype)
    row, column = Index(axis_index(0) + int(node.attrs.get("k", 0))), Index(axis_index(1))
    return Facts(x.shape, dtype, apply("Cast", (apply("Equal", (row, column), "bool"),), dtype))
