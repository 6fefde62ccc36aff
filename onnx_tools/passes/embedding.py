# SPDX-License-Identifier: Apache-2.0
"""Word, position and token type embedding with their layer norm: PadfreeEmbedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ..analysis import REORDERINGS, Editor, made_by, node_name, tidy
from ..analysis.symbolic import Analysis, Axis, Element, Index, Poly, analyse, axis_index, axis_of
from ..errors import RewriteError
from ..match import Miss, NoMatch
from ..match.chains import norms, scale_of
from ..match.values import mask_of
from .base import PassResult, boundary_of, pack_int32, unpack
from .positions.counted_ids import count_slots

NAME = "embedding"


@dataclass
class _LookUps:
    """The leaves of a sum of table look-ups; `editor` makes constants."""

    editor: Editor
    by_input: list[tuple[gs.Constant, gs.Tensor]] = field(default_factory=list)  # rows that an input names
    counted_tables: list[tuple[gs.Constant, int, gs.Tensor]] = field(
        default_factory=list
    )  # rows 0, 1, ... plus an offset
    computed_tables: list[tuple[gs.Constant, gs.Tensor]] = field(default_factory=list)  # rows that the graph computes
    rows: list[np.ndarray] = field(default_factory=list)  # the same row for every token


def embedding(padded: bool) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass for one interface: in the padded one, positions are slots, which the mask may skip."""

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        replaced_count, misses, excluded_ids = 0, list[Miss](), dict[str, tuple[int, ...]]()
        if not padded:
            excluded_ids = count_slots(graph, analysis, mask_of(analysis[boundary_of(graph).mask]))
            tidy(graph)
            analysis = analyse(graph, analysis)
        for node in list(graph.nodes):
            if not norms.is_candidate(node):
                continue
            try:
                norm = norms.match(analysis, node)
                if norm is None or norm.rms or not _has_look_up(norm.x):
                    continue
                tables = _LookUps(Editor(graph))
                _collect(analysis, norm.x, tables)
                _replace(graph, analysis, norm, tables, padded)
            except NoMatch as reason:
                if _has_look_up(node.inputs[0]) and not _has_layer(node.inputs[0]):
                    misses.append(Miss(node_name(node), str(reason)))
                continue
            replaced_count += 1
        return PassResult(NAME, replaced_count, tuple(misses), tuple(excluded_ids.items()))

    return run


def _has_look_up(tensor: gs.Tensor, depth: int = 4) -> bool:
    """Whether a table look-up is among the terms of a sum."""
    node = made_by(tensor, "Add", "Gather")
    if node is None or depth == 0:
        return False
    if node.op == "Gather":
        return isinstance(node.inputs[0], gs.Constant)
    return any(_has_look_up(item, depth - 1) for item in node.inputs)


def _has_layer(tensor: gs.Tensor, depth: int = 4) -> bool:
    """Whether the result of a layer is among the terms of a sum, which is no embedding then."""
    node = made_by(tensor, "Add", "Cast", "Dropout", "MatMul", "Gemm", *REORDERINGS)
    if node is None or depth == 0:
        return False
    return node.op in ("MatMul", "Gemm") or any(_has_layer(item, depth - 1) for item in node.inputs)


def _collect(analysis: Analysis, tensor: gs.Tensor, tables: _LookUps) -> None:
    add = made_by(tensor, "Add")
    if add is not None:
        for item in add.inputs:
            _collect(analysis, item, tables)
        return
    if isinstance(tensor, gs.Constant) and len(tensor.shape) and np.prod(tensor.shape) == tensor.shape[-1]:
        tables.rows.append(tensor.values.reshape(-1))
        return
    scaled = scale_of(analysis, tensor)
    gather = made_by(tensor if scaled is None else scaled[0], "Gather")
    if gather is None:
        maker = tensor.inputs[0] if tensor.inputs else None
        what = f"'{tensor.name}'" if maker is None else f"'{node_name(maker)}' ({maker.op})"
        raise NoMatch(f"the sum before the norm holds {what}, which is no look-up in a table")
    table, indices = gather.inputs
    if not isinstance(table, gs.Constant) or len(table.shape) != 2 or axis_of(gather, 2) != 0:
        raise NoMatch(f"'{node_name(gather)}' (Gather) does not take rows of a constant table [rows, E]")
    if scaled is not None and scaled[1] != 1.0:
        if len(table.outputs) > 1:
            raise NoMatch(f"the rows of '{table.name}' are multiplied by {scaled[1]}, and read elsewhere as they are")
        values = table.values * np.asarray(scaled[1], table.dtype)
        table = tables.editor.constant(f"{table.name}_scaled", values.astype(table.dtype))
    _classify(analysis, table, indices, tables, gather)


def _classify(analysis: Analysis, table: gs.Constant, indices: gs.Tensor, tables: _LookUps, gather: gs.Node) -> None:
    facts = analysis[indices]
    expr, rank = facts.expr, facts.rank
    if rank != 2:
        raise NoMatch(f"'{node_name(gather)}' (Gather) is not indexed by a [batch, sequence] tensor")
    if isinstance(expr, Index):
        row = expr.poly.constant()
        offset = (expr.poly - Poly.atom(Axis(1))).constant()
        if row is not None:
            tables.rows.append(_row(table, row, gather))
            return
        if offset is not None and offset >= 0:
            tables.counted_tables.append((table, offset, indices))
            return
    whole = facts.shape is not None and facts.shape[0] == Poly.atom("B") and facts.shape[1] == Poly.atom("S")
    if not whole:
        raise NoMatch(f"the rows that '{node_name(gather)}' (Gather) takes are not known for every token")
    own = (axis_index(0), axis_index(1))
    if isinstance(expr, Element) and expr.indices == own and not indices.inputs:
        tables.by_input.append((table, indices))
    else:
        tables.computed_tables.append((table, indices))


def _row(table: gs.Constant, row: int, gather: gs.Node) -> npt.NDArray[np.generic]:
    """The row [E] of a table [rows, E] that every token takes. Raises RewriteError where the table has no such row."""
    count = int(table.shape[0])
    if not -count <= row < count:
        raise RewriteError(
            f"'{node_name(gather)}' (Gather) takes row {row} of '{table.name}', which has rows 0..{count - 1}, so that "
            "every run of the original fails; give --fix a number that is a row, or export the model again"
        )
    values: npt.NDArray[np.generic] = table.values[row]
    return values


def _replace(graph: gs.Graph, analysis: Analysis, norm: norms.LayerNorm, tables: _LookUps, padded: bool) -> None:
    editor, boundary = tables.editor, boundary_of(graph)
    by_size = sorted(tables.by_input, key=lambda item: -int(item[0].shape[0]))
    positions: tuple[gs.Constant, int, gs.Tensor | None] | None = None
    if len(tables.counted_tables) == 1:
        table, offset, slots = tables.counted_tables[0]
        positions = (table, offset, slots if padded else None)
    elif len(tables.computed_tables) == 1:
        positions = (tables.computed_tables[0][0], 0, tables.computed_tables[0][1])
    elif len(by_size) == 3:
        positions = (by_size[1][0], 0, by_size[1][1])
        by_size = [by_size[0], by_size[2]]
    if not by_size or len(by_size) > 2 or len(tables.counted_tables) + len(tables.computed_tables) > 1:
        raise NoMatch(
            f"the sum before '{norm.node}' has {len(tables.by_input)} look-ups by inputs and "
            f"{len(tables.counted_tables) + len(tables.computed_tables)} by positions and other computed numbers; "
            "1 to 3 by inputs and at most 1 of the others are supported"
        )
    (word_table, ids), types = by_size[0], by_size[1] if len(by_size) == 2 else None
    position_table, offset, position_input = positions if positions is not None else (None, 0, None)
    if tables.rows:
        row: np.ndarray = np.asarray(np.sum(tables.rows, axis=0, dtype=np.float32))
        if position_table is not None:
            position_table = _shift(editor, position_table, row)
        else:
            word_table = _shift(editor, word_table, row)

    def pack(tensor: gs.Tensor) -> gs.Tensor:
        return pack_int32(editor, tensor, boundary, analysis[tensor].dtype)

    inputs = [pack(ids)]
    inputs += [pack(types[1])] if types is not None else []
    inputs += [pack(_stretch(editor, analysis, position_input, ids))] if position_input is not None else []
    inputs += [boundary.cu_seqlens, word_table]
    inputs += [position_table] if position_table is not None else []
    inputs += [types[0]] if types is not None else []
    ones = np.ones(word_table.shape[1], np.float32)
    inputs += [editor.constant("ones", ones) if norm.gamma is None else norm.gamma]
    inputs += [norm.beta] if norm.beta is not None else []
    result = editor.variable("embedding", word_table.dtype)
    editor.padfree(
        "PadfreeEmbedding",
        inputs,
        [result],
        epsilon=norm.epsilon,
        position_offset=offset if position_input is None else 0,
        has_token_types=int(types is not None),
        has_positions=int(position_input is not None),
        has_position_table=int(position_table is not None),
        has_beta=int(norm.beta is not None),
        results="act",
        y_scale=1.0,
    )
    dtype = analysis[norm.output].dtype
    unpack(editor, result, boundary, dtype, norm.output)


def _shift(editor: Editor, table: gs.Constant, row: np.ndarray) -> gs.Constant:
    """The table with a row added to each of its rows."""
    values = (table.values.astype(np.float32) + row).astype(table.values.dtype)
    return editor.constant(f"{table.name}_with_row", values)


def _stretch(editor: Editor, analysis: Analysis, tensor: gs.Tensor, like: gs.Tensor) -> gs.Tensor:
    """Positions [1,S] as [B,S]."""
    if analysis[tensor].shape == analysis[like].shape:
        return tensor
    shape = editor.op("Shape", like, stem="token_shape")
    return editor.op("Expand", tensor, shape, stem="positions")
