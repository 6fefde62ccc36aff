# SPDX-License-Identifier: Apache-2.0
"""Plain tensors in place of lists (SplitToSequence, SequenceConstruct) that are taken apart at known positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, argument, is_standard, made_by
from ..analysis.symbolic import Facts

Lookup = Callable[[gs.Tensor], Facts]

TAKEN_APART = ("ConcatFromSequence", "OptionalGetElement", "SequenceAt")


def take_apart(editor: Editor, lookup: Lookup, node: gs.Node) -> bool:
    """Puts plain nodes in place of one that reads a list; `lookup` gives facts. Returns whether that was possible."""
    if not is_standard(node, *TAKEN_APART):
        return False
    source, before = node.inputs[0], len(editor.graph.nodes)
    result = editor.variable(f"{node.outputs[0].name}_plain", node.outputs[0].dtype)
    if node.op == "OptionalGetElement":
        optional = made_by(source, "Optional")
        editor.op("Identity", source if optional is None else optional.inputs[0], output=result)
    elif node.op == "SequenceAt":
        _element(editor, lookup, node, result)
    else:
        _join(editor, node, result)
    if len(editor.graph.nodes) == before:
        return False
    editor.op("Identity", result, output=node.outputs[0])
    node.inputs.clear()
    return True


def _element(editor: Editor, lookup: Lookup, node: gs.Node, result: gs.Tensor) -> None:
    indices = lookup(node.inputs[1]).plain_integers()
    maker = made_by(node.inputs[0], "SequenceConstruct", "SplitToSequence")
    if indices is None or maker is None:
        return
    position = indices[0]
    if maker.op == "SequenceConstruct":
        if -len(maker.inputs) <= position < len(maker.inputs):
            editor.op("Identity", maker.inputs[position], output=result)
        return
    x, axis, split = maker.inputs[0], int(maker.attrs.get("axis", 0)), argument(maker, 1)
    if split is None:
        keeps = int(maker.attrs.get("keepdims", 1))
        index = editor.integers(position) if keeps else editor.scalar(position, np.int64)
        editor.op("Gather", x, index, axis=axis, output=result)
        return
    limits = _limits(lookup, x, axis, split, position)
    if limits is not None:
        editor.op("Slice", x, *map(editor.integers, (*limits, axis)), output=result)


def _limits(lookup: Lookup, x: gs.Tensor, axis: int, split: gs.Tensor, index: int) -> tuple[int, int] | None:
    """The begin and end of part `index`."""
    sizes, shape = lookup(split).plain_integers(), lookup(x).shape
    if sizes is None:
        return None
    if lookup(split).rank == 0:
        total = None if shape is None else shape[axis].constant()
        count = None if total is None else -(-total // sizes[0])
        if index < 0 and count is None:
            return None
        index = index + (count or 0) if index < 0 else index
        return index * sizes[0], (index + 1) * sizes[0]
    if not -len(sizes) <= index < len(sizes):
        return None
    ends = np.cumsum(sizes)
    return int(ends[index] - sizes[index]), int(ends[index])


def _join(editor: Editor, node: gs.Node, result: gs.Tensor) -> None:
    axis, maker = int(node.attrs["axis"]), made_by(node.inputs[0], "SequenceConstruct", "SplitToSequence")
    is_new = int(node.attrs.get("new_axis", 0))
    if maker is None:
        return
    if maker.op == "SplitToSequence":
        keeps = argument(maker, 1) is not None or int(maker.attrs.get("keepdims", 1)) == 1
        if axis == int(maker.attrs.get("axis", 0)) and keeps != bool(is_new):
            editor.op("Identity", maker.inputs[0], output=result)
        return
    parts = list(maker.inputs)
    if is_new:
        parts = [editor.unsqueeze(part, axis, stem=f"{part.name}_wide") for part in parts]
    editor.op("Concat", *parts, axis=axis, output=result)
