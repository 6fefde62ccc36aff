# SPDX-License-Identifier: Apache-2.0
"""Rows of word tables whose first reader is a norm, as in decoders: a kernel that also gives their moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, T, find_padfree, is_number, made_by, padfree_inputs, table_of
from ...analysis.symbolic import Analysis
from ...operators import MAX_NORMED_WIDTH, MOMENTS_GROUP
from ..base import PassResult
from .folded_weights import values_of

NAME = "token rows"


@dataclass(frozen=True)
class _Rows:
    """What PadfreeTokenRows computes: rows of a table for `ids` [T], times a factor."""

    ids: gs.Tensor
    table: gs.Constant
    scale: float


def token_rows(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Makes the rows that norms read PadfreeTokenRows, where they are a table's, times a number or not.

    The next pass can fold the norm into GEMMs then, and a build lets the rows' kernel make the schedule.
    """
    editor, replaced_count = Editor(graph), 0
    for norm in find_padfree(graph, "PadfreeLayerNorm"):
        inputs = padfree_inputs(norm)
        if "residual" in inputs or "bias" in inputs:
            continue
        rows = _match(analysis, inputs["x"])
        if rows is not None:
            _replace(editor, analysis, rows, inputs["x"])
            replaced_count += 1
    return PassResult(NAME, replaced_count)


def _match(analysis: Analysis, tensor: gs.Tensor) -> _Rows | None:
    """The rows that a tensor [T,E] holds; None where it is something else, or the kernel does not have the width."""
    factors = _factors(analysis, tensor)
    gathered, scale = (tensor, 1.0) if factors is None else factors
    gather = made_by(gathered, "Gather")
    table = None if gather is None else table_of(gather)
    if gather is None or table is None or len(table.shape) != 2:
        return None
    ids, width = gather.inputs[1], int(table.shape[1])
    if analysis[ids].shape != (T,) or width % MOMENTS_GROUP or width > MAX_NORMED_WIDTH:
        return None
    return _Rows(ids, table, scale)


def _factors(analysis: Analysis, tensor: gs.Tensor) -> tuple[gs.Tensor, float] | None:
    """The factors of a product with a number in the graph's type; the kernel rounds the product as Mul does."""
    node = made_by(tensor, "Mul")
    for rows, number in () if node is None else (node.inputs, node.inputs[::-1]):
        if is_number(number) and analysis[rows].shape == analysis[tensor].shape:
            return rows, float(values_of(number).item())
    return None


def _replace(editor: Editor, analysis: Analysis, rows: _Rows, output: gs.Tensor) -> None:
    ids = rows.ids
    cast = made_by(ids, "Cast")
    if cast is not None and analysis[cast.inputs[0]].dtype == "int32":
        ids = cast.inputs[0]
    elif analysis[ids].dtype != "int32":
        ids = editor.cast(ids, np.int32, f"{ids.name}_int32")
    editor.padfree(
        "PadfreeTokenRows", [ids, rows.table], [editor.take_over(output)], scale=float(rows.scale), has_moments=0
    )
