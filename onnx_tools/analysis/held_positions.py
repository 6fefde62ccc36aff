# SPDX-License-Identifier: Apache-2.0
"""Which inputs of a model are positions, judged by what the model does with them, not by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from padfree.contract.names import OTHER_VALUES, POSITIONS
from padfree.contract.text_inputs import MOST_TYPES, ids_among

from .computation import Computation, NotComputedError
from .graph import is_standard
from .layout import S, is_token_input
from .limits import limit_of
from .onnx_operators import Movement, moving
from .positional import Positional
from .symbolic import Analysis
from .walks import readers_after

_ANGLES = moving(*Movement) - moving(Movement.PART) | {"Div", "Einsum", "MatMul", "Mul"}
"""Operators that may lie between a position and the cosines of its angles."""
_ANGLE_OPS = ("Sin", "Cos")
_MIXING = ("CumSum", "Conv", "ConvTranspose", "GRU", "LSTM", "RNN", "Scan", "Loop")
"""Operators that may make results depend on the order of tokens without any positions."""
_LENGTH = 5  # tokens of the sequence for which formulas of positions are evaluated


@dataclass(frozen=True)
class _Input:
    """An input of integers, and how many rows the table has that it indexes."""

    original_name: str
    limit: int | None
    holds: str | None = None


def held_positions(graph: gs.Graph, analysis: Analysis) -> dict[str, str]:
    """POSITIONS or OTHER_VALUES for those inputs [B,S], besides ids and types, of which the graph proves either.

    Positions are turned into angles, or index the only table that tells the model the order of the tokens.
    Where the model counts positions itself and adds a row for each, an input with a table of its own holds none.
    """
    items = [_Input(tensor.name, limit_of(graph, tensor.name)) for tensor in graph.inputs if _is_of_integers(tensor)]
    ids = ids_among(items)
    others = [item.original_name for item in items if item is not ids]
    tables = [item.original_name for item in items if item is not ids and (item.limit or 0) > MOST_TYPES]
    rotary_inputs = [tensor.name for tensor in graph.inputs if tensor.name in others and _is_turned(tensor)]
    if rotary_inputs or not tables:
        return dict.fromkeys(rotary_inputs, POSITIONS)
    order = list(_order(graph, analysis))
    if any(isinstance(rows, bool) and rows for rows in order):
        return dict.fromkeys(tables, OTHER_VALUES)
    return {tables[0]: POSITIONS} if not order and len(tables) == 1 else {}


def _is_of_integers(tensor: gs.Tensor) -> bool:
    return is_token_input(tensor) and len(tensor.shape) == 2 and np.dtype(tensor.dtype).kind in "iu"


def _is_turned(tensor: gs.Tensor) -> bool:
    """Whether an input's numbers become angles: their sines and cosines are computed, or taken from a table."""
    for node, read in readers_after([tensor], lambda node, _: is_standard(node, *_ANGLES)):
        is_index = is_standard(node, "Gather") and node.inputs[1] is read
        if is_standard(node, *_ANGLE_OPS) or (is_index and _holds_angles(node.inputs[0])):
            return True
    return False


def _holds_angles(table: gs.Tensor) -> bool:
    """Whether row n of a table holds cosines or sines of multiples of n: row 0 is all ones or all zeros."""
    if not isinstance(table, gs.Constant) or len(table.shape) < 2 or np.dtype(table.dtype).kind != "f":
        return False
    rows = np.asarray(table.values, np.float64).reshape(len(table.values), -1)
    if len(rows) <= MOST_TYPES or np.abs(rows).max(initial=0) > 1 or not np.ptp(rows):
        return False
    # cos 2x = 2 cos^2 x - 1, and sin 2x = 2 sin x cos x, whose square follows from sin x alone
    if np.all(rows[0] == 1):
        doubled = 2 * rows[1] ** 2 - 1
        return bool(np.allclose(rows[2], doubled, atol=1e-3))
    doubled = 4 * rows[1] ** 2 * (1 - rows[1] ** 2)
    return bool(np.all(rows[0] == 0) and np.allclose(rows[2] ** 2, doubled, atol=1e-3))


def _order(graph: gs.Graph, analysis: Analysis) -> Iterator[bool]:
    """What tells the model the order of tokens, besides inputs; True for rows that are added to those of tokens."""
    positional, memo = Positional(graph, analysis, None), dict[str, bool]()
    for node in graph.nodes:
        if is_standard(node, *_MIXING):
            yield False
        for tensor in node.inputs:
            leaves = not tensor.is_empty() and tensor in positional and node.outputs[0] not in positional
            if leaves and isinstance(tensor, gs.Variable) and _grows(analysis, tensor):
                formula = positional.computation(tensor)
                if formula is None:
                    yield False
                elif memo.setdefault(formula.key, _differs(formula)):
                    yield _has_rows(analysis, tensor) and is_standard(node, "Add")


def _grows(analysis: Analysis, tensor: gs.Tensor) -> bool:
    """Whether a tensor has an element for every slot, or may have."""
    shape = analysis[tensor].shape
    return shape is None or any("S" in size.atoms() for size in shape)


def _has_rows(analysis: Analysis, tensor: gs.Tensor) -> bool:
    """Whether a tensor is [S,E] or [...,S,E] in floats with a fixed E: a bias of pairs of slots is not."""
    facts = analysis[tensor]
    shape = facts.shape or ()
    is_rows = len(shape) > 1 and shape[-2] == S and (shape[-1].constant() or 0) > 1
    return is_rows and (facts.dtype or "").startswith("float")


def _differs(formula: Computation) -> bool:
    """Whether the elements differ: one number for all tokens tells no order."""
    try:
        return bool(np.ptp(np.asarray(formula.run(1, _LENGTH, {}), np.float64)) > 0)
    except NotComputedError:
        return True


def holds_entry(table_inputs: Mapping[str, str], name: str) -> dict[str, str]:
    """The metadata's entry for what an input holds; empty where it is not known."""
    return {"holds": table_inputs[name]} if name in table_inputs else {}
