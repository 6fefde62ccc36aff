# SPDX-License-Identifier: Apache-2.0
"""Lengths instead of a mask, such as MXNet's `valid_length`: an input [B] that positions are compared with.

The passes only know masks. So a mask replaces these comparisons, and its sum replaces the lengths. Where it is proved
to be the padding mask, the packed interface has its lengths anyway, and the padded one makes it from the input again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import B, Editor, S, disconnect, is_standard, is_token_input
from ..analysis.symbolic import Analysis, Apply, Element, Expr, Index, axis_index

# Comparisons of a position, or of the next one (1), with its sequence's length, and whether they are true at tokens.
_KEEPS: Mapping[tuple[str, int], bool] = MappingProxyType(
    {("Less", 0): True, ("GreaterOrEqual", 0): False, ("LessOrEqual", 1): True, ("Greater", 1): False}
)
_MIRRORED: Mapping[str, str] = MappingProxyType(
    {"Less": "Greater", "Greater": "Less", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"}
)
_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class LengthsInput:
    """An input of lengths, [B] or [B,1], and the name of the mask in its place."""

    input: str
    dtype: str
    shape: tuple[int | str, ...]
    mask: str


def lengths_among(graph: gs.Graph, analysis: Analysis) -> list[str]:
    """The inputs, with a row for every sequence, that positions of tokens are compared with."""
    return list(dict.fromkeys(source for _, source, _ in _comparisons(graph, analysis)))


def put_mask(graph: gs.Graph, analysis: Analysis, name: str) -> LengthsInput:
    """Puts a new mask, int64 [B,S], in place of an input of lengths: for comparisons, and its sum for the lengths."""
    editor = Editor(graph)
    lengths_input = next(tensor for tensor in graph.inputs if tensor.name == name)
    mask = gs.Variable(editor.fresh(f"{name}_mask"), _INT64, ["B", "S"])
    lengths = LengthsInput(name, np.dtype(lengths_input.dtype).name, tuple(lengths_input.shape), mask.name)
    graph.inputs = [mask if tensor is lengths_input else tensor for tensor in graph.inputs]
    for node, source, keeps in _comparisons(graph, analysis, [lengths_input]):
        if source == name:
            _put_in_place(editor, mask, node, keeps, analysis[node.outputs[0]].rank or 2)
    lengths_input.name = editor.fresh(f"{name}_sum")
    total = editor.along("ReduceSum", mask, 1, stem=f"{name}_total", keepdims=int(len(lengths.shape) > 1))
    editor.cast(total, lengths.dtype, output=lengths_input)
    return lengths


def _comparisons(
    graph: gs.Graph, analysis: Analysis, inputs: Sequence[gs.Tensor] | None = None
) -> list[tuple[gs.Node, str, bool]]:
    """Nodes that make bool [B,...,S] from positions and an input, that input, and whether they are true at tokens."""
    graph_inputs = graph.inputs if inputs is None else inputs
    rows = [tensor.name for tensor in graph_inputs if list(tensor.shape) in (["B"], ["B", 1])]
    comparisons = list[tuple[gs.Node, str, bool]]()
    for node in graph.nodes if rows else ():
        shape = analysis[node.outputs[0]].shape if is_standard(node, *_MIRRORED) else None
        if not shape or shape[0] != B or shape[-1] != S or any(size.constant() != 1 for size in shape[1:-1]):
            continue
        one, other = (_inner(analysis[tensor].expr) for tensor in node.inputs)
        positions, length, op = (one, other, node.op) if isinstance(one, Index) else (other, one, _MIRRORED[node.op])
        if not isinstance(positions, Index) or not isinstance(length, Element) or length.source not in rows:
            continue
        axes = [axis_index(axis) for axis in range(max(analysis[tensor].rank or 0 for tensor in node.inputs))]
        offset = next((rest for axis in axes if (rest := (positions.poly - axis).constant()) is not None), None)
        keeps = _KEEPS.get((op, -1 if offset is None else offset))
        if keeps is not None:
            comparisons.append((node, length.source, keeps))
    return comparisons


def _put_in_place(editor: Editor, mask: gs.Tensor, node: gs.Node, keeps: bool, rank: int) -> None:
    """Makes the result of a comparison from the mask."""
    result = node.outputs[0]
    disconnect(node)
    is_token = editor.cast(mask, np.bool_, "kept")
    if rank > 2:
        is_token = editor.unsqueeze(is_token, *range(1, rank - 1), stem="kept")
    editor.op("Identity" if keeps else "Not", is_token, output=result)


def take_lengths(graph: gs.Graph, lengths: LengthsInput) -> None:
    """Makes the mask from the input of lengths, in place: 1 in the slots of each sequence's tokens."""
    editor = Editor(graph)
    mask = next(tensor for tensor in graph.inputs if tensor.name == lengths.mask)
    like = next(tensor for tensor in graph.inputs if is_token_input(tensor) and tensor is not mask)
    lengths_input = gs.Variable(lengths.input, np.dtype(lengths.dtype), list(lengths.shape))
    graph.inputs = [lengths_input if tensor is mask else tensor for tensor in graph.inputs]
    mask.name = editor.fresh(f"{lengths.mask}_made")
    counts = editor.reshape(editor.cast(lengths_input, _INT64, "lengths"), -1, 1)
    editor.cast(editor.op("Less", editor.slots(like, 1), counts, stem="kept"), _INT64, output=mask)


def _inner(expr: Expr | None) -> Expr | None:
    """The expression inside of casts."""
    return _inner(expr.args[0]) if isinstance(expr, Apply) and expr.op == "Cast" else expr
