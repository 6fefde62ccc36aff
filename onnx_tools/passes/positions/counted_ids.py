# SPDX-License-Identifier: Apache-2.0
"""Positions that count the tokens of a row by their ids, as RoBERTa's do: cumsum(ids != padding) + padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis.graph import made_by
from ...analysis.symbolic import Analysis, Apply, Element, evaluate
from ...analysis.symbolic.expr import Expr, axis_index, leaves


@dataclass(frozen=True)
class CountedIds:
    """Positions offset, offset + 1, ... of every token whose id is not among `padding`."""

    ids: str  # the input
    offset: int
    padding: tuple[int, ...]


def counted_ids(analysis: Analysis, positions: gs.Tensor, rows: int) -> CountedIds | None:
    """How a tensor [B,S] counts the ids of an input that are below `rows`; None where it is something else."""
    add = made_by(_inner(positions), "Add")
    if add is None:
        return None
    for this, other in ((0, 1), (1, 0)):
        shift = analysis[add.inputs[other]].scalar()
        product = made_by(_inner(add.inputs[this]), "Mul")
        if shift is None or product is None:
            continue
        for one, two in ((0, 1), (1, 0)):
            kept = _summed(analysis, product.inputs[one])
            weight = _plain(analysis[_inner(product.inputs[two])].expr)
            if kept is None or kept != weight:
                continue
            elements = {leaf for leaf in leaves(kept) if isinstance(leaf, Element)}
            if len(elements) != 1 or next(iter(elements)).indices != (axis_index(0), axis_index(1)):
                continue
            return _of_vocabulary(kept, next(iter(elements)), int(shift), rows)
    return None


def _of_vocabulary(kept: Expr, element: Element, shift: int, rows: int) -> CountedIds | None:
    try:
        counts = np.broadcast_to(evaluate(kept, {element: np.arange(rows)}), rows).astype(np.int64)
    except ValueError:
        return None
    padding = np.flatnonzero(counts == 0)
    if np.any((counts != 0) & (counts != 1)) or len(padding) >= rows or shift + 1 < 0:
        return None
    return CountedIds(element.source, shift + 1, tuple(int(item) for item in padding))


def _summed(analysis: Analysis, tensor: gs.Tensor) -> Expr | None:
    """What a CumSum along the sequence adds up."""
    while True:
        tensor = _inner(tensor)
        add = made_by(tensor, "Add")
        zero = None if add is None else next((i for i in (0, 1) if analysis[add.inputs[i]].scalar() == 0.0), None)
        if add is None or zero is None:
            break
        tensor = add.inputs[1 - zero]
    node = made_by(tensor, "CumSum")
    if node is None or node.attrs.get("exclusive", 0) or node.attrs.get("reverse", 0):
        return None
    if analysis[node.inputs[1]].plain_integers() not in ([1], [-1]) or analysis[node.inputs[0]].rank != 2:
        return None
    return _plain(analysis[node.inputs[0]].expr)


def _inner(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor before casts."""
    node = made_by(tensor, "Cast")
    return tensor if node is None else _inner(node.inputs[0])


def _plain(expr: Expr | None) -> Expr | None:
    """The expression without casts around it."""
    while isinstance(expr, Apply) and expr.op == "Cast":
        expr = expr.args[0]
    return expr
