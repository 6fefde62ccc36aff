# SPDX-License-Identifier: Apache-2.0
"""Rows of neighbouring tokens side by side, as a convolution reads them: a Gather of packed tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, argument, find_standard, is_token_shape, made_by, node_name
from ..analysis.symbolic import Analysis, axis_of, slice_arguments
from ..match import IF_CONTIGUOUS, NoMatch
from ..match.masks import SlotValues
from ..match.values import mask_of
from .base import Boundary, PassResult, boundary_of, pack_tokens, replace_each, unpack
from .positions.positions import Positions

NAME = "neighbours"
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class _Neighbours:
    """For every slot, the rows of x that are `offsets` slots after it, side by side; 0 beyond the sequence's axis."""

    x: gs.Tensor
    offsets: tuple[int, ...]


def neighbours(padded: bool, contiguous: bool) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass for one interface. In the padded one, only nearest neighbours are packed where masks may have holes."""

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        editor, boundary, limited_names, earlier_names = Editor(graph), boundary_of(graph), list[str](), list[str]()
        mask, positions = mask_of(analysis[boundary.mask]), Positions(editor, boundary)
        values = SlotValues(analysis, mask)

        def replace_concat(node: gs.Node) -> bool:
            match = _match(analysis, node)
            if match is None:
                return False
            if values.at_masked(match.x) != 0.0:
                earlier_names.append(_check_earlier(match, node, padded))
            if padded and mask.source is not None and max(map(abs, match.offsets)) > 1:
                limited_names.append(_check_holes(node, contiguous))
            _replace(editor, analysis, boundary, positions, match, node, padded)
            return True

        result = replace_each(NAME, find_standard(graph, "Concat"), replace_concat)
        return replace(result, contiguous=tuple(limited_names), right_padded=tuple(earlier_names))

    return run


def _match(analysis: Analysis, node: gs.Node) -> _Neighbours | None:
    """What a Concat along the last axis joins, where that is rows of one [B,S,C] at several distances."""
    shape = analysis[node.outputs[0]].shape
    if not is_token_shape(shape) or len(shape or ()) != 3 or axis_of(node, 3) != 2:
        return None
    parts = [_shift(analysis, tensor) for tensor in node.inputs]
    taps = [part for part in parts if part is not None]
    if len(taps) < len(parts) or len({part[0].name for part in taps}) != 1 or not any(at for _, at in taps):
        return None
    return _Neighbours(taps[0][0], tuple(offset for _, offset in taps))


def _shift(analysis: Analysis, tensor: gs.Tensor) -> tuple[gs.Tensor, int] | None:
    """x and d where row s of a tensor [B,S,C] is row s + d of x, or zeros where x has none; None for anything else."""
    part, shape = made_by(tensor, "Slice"), analysis[tensor].shape
    pad = None if part is None else made_by(part.inputs[0], "Pad")
    if part is None or pad is None:
        return tensor, 0
    x, widths = pad.inputs[0], _zeros_around(analysis, pad)
    limits = slice_arguments(part, [analysis[item] for item in part.inputs])
    if widths is None or limits is None or not is_token_shape(analysis[x].shape) or analysis[x].shape != shape:
        return None
    starts, _, axes, steps = limits
    start = starts[0].constant()
    if axes != [1] or steps != [1] or start is None or not 0 <= start <= sum(widths):
        return None
    return x, start - widths[0]


def _zeros_around(analysis: Analysis, pad: gs.Node) -> tuple[int, int] | None:
    """How many zeros a Pad puts before and after the sequence; None where it does something else."""
    mode, value = pad.attrs.get("mode", "constant"), argument(pad, 2)
    pads = analysis[pad.inputs[1]].plain_integers() if len(pad.inputs) > 1 else None
    if mode not in ("constant", b"constant") or (value is not None and analysis[value].scalar() != 0.0):
        return None
    if pads is None or len(pads) != 6 or argument(pad, 3) is not None or min(pads) < 0:
        return None
    return (pads[1], pads[4]) if not any(pads[axis] for axis in (0, 2, 3, 5)) else None


def _check_earlier(match: _Neighbours, node: gs.Node, padded: bool) -> str:
    """The reason why masks must be right-padded. Raises NoMatch where neighbours may be in masked slots even then."""
    what = f"'{node_name(node)}' ({node.op}) joins neighbours that are not known to be 0 in masked slots"
    if padded or max(match.offsets) > 0:
        raise NoMatch(what)
    return f"{what}, before a token"


def _check_holes(node: gs.Node, contiguous: bool) -> str:
    """The reason why masks must have no holes. Raises NoMatch where they may have some."""
    what = f"'{node_name(node)}' ({node.op}) joins tokens with more than their nearest neighbours"
    if not contiguous:
        counts = "under a mask with holes the original counts slots between them, and not tokens"
        raise NoMatch(f"{what}: {counts}; {IF_CONTIGUOUS}")
    return f"{what}, by slots in the original"


def _replace(
    editor: Editor,
    analysis: Analysis,
    boundary: Boundary,
    positions: Positions,
    match: _Neighbours,
    node: gs.Node,
    padded: bool,
) -> None:
    """Row t gets row t + d for every offset d where that token is d slots from it, and zeros elsewhere."""
    facts, count = analysis[match.x], len(match.offsets)
    offsets = editor.constant("offsets", np.asarray([match.offsets], np.int32))
    nodes = editor.with_stem("neighbours")
    op, number = nodes.op, nodes.scalar

    def at_distance(indices: gs.Tensor) -> gs.Tensor:
        """[T,K]: whether the row for each offset has an index that is this far from the token's own."""
        indices_moved = op("Add", nodes.unsqueeze(indices, 1), offsets)
        return op("Equal", op("Gather", indices, rows, axis=0), indices_moved)

    slots = positions.slots()
    size = nodes.along("Squeeze", op("Shape", slots), 0)
    every = nodes.count_to(size)
    row_indices = op("Add", nodes.unsqueeze(editor.cast(every, _INT32, "rows"), 1), offsets)
    last = op("Sub", editor.cast(size, _INT32, "rows"), number(1, _INT32))
    rows = op("Min", op("Max", row_indices, number(0, _INT32)), last)
    near = at_distance(slots)
    if padded:  # that slot may be in another row of the batch
        near = op("And", near, at_distance(boundary.token_index))
    x = pack_tokens(editor, match.x, boundary, facts)
    beside = op("Gather", x, rows, axis=0)
    near = nodes.unsqueeze(near, 2)
    within = op("Where", near, beside, number(0, facts.dtype or np.float32))
    width = (facts.shape or ())[2].constant() or 0
    unpack(editor, nodes.reshape(within, -1, count * width), boundary, facts.dtype, node.outputs[0])
