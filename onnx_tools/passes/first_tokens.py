# SPDX-License-Identifier: Apache-2.0
"""Takes sequences' first or last tokens before what computes each token by itself, where nothing reads the others.

Classifiers and embedding models that pool by one token need one row per sequence of the last layer's GEMMs: encoders
the first, decoders the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_graphsurgeon as gs

from ..analysis import OPERATORS, Editor, T, is_output, is_padfree, is_standard, present, producer
from ..analysis.symbolic import Analysis
from .base import Boundary, PassResult, boundary_of, pool_tokens

NAME = "first tokens"
_MODES = ("first", "last")

RowInputs = tuple[int, ...]
"""Which inputs of a node are [T,...]."""


def first_tokens(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Lets nodes compute rows [B,...] of first or last tokens instead of [T,...], if that saves work in GEMMs.

    A PadfreePool after such nodes then reads the row of each sequence: it normalises, and keeps zeros for empty ones.
    Other PadfreePools take these tokens from what the nodes read. What the nodes make of zeros is finite.
    """
    boundary = boundary_of(graph)
    for mode in _MODES:
        pools = [node for node in graph.nodes if _takes(node, mode) and node.inputs[1] is boundary.cu_seqlens]
        movable = _movable(graph, analysis, pools)
        if movable:
            row_graph = _FirstRows(graph, boundary, pools, mode)
            for node in [item for item in graph.nodes if id(item) in movable]:
                row_graph.compute(node, movable[id(node)])
            return PassResult(NAME, row_graph.finish())
    return PassResult(NAME, 0)


def _takes(node: gs.Node, mode: str) -> bool:
    return is_padfree(node, "PadfreePool") and node.attrs["mode"] == mode


class _FirstRows:
    """The rows [B,...] that replace tensors [T,...]; `pools` are those that take these tokens already."""

    def __init__(self, graph: gs.Graph, boundary: Boundary, pools: list[gs.Node], mode: str) -> None:
        self._editor, self._boundary, self._pools, self._mode = Editor(graph), boundary, pools, mode
        self._results: dict[int, gs.Tensor] = {}  # by the id of the tensor [T,...]
        self._pooled_rows = {id(pool.inputs[0]): pool.outputs[0] for pool in pools if not pool.attrs["normalize"]}

    def compute(self, node: gs.Node, rows: RowInputs) -> None:
        """Lets a node compute these tokens alone; nodes before it that are to do so already do."""
        for position in rows:
            node.inputs[position] = self._rows_of(node.inputs[position])
        tensors = list(node.outputs)
        node.outputs = [self._variable(tensor) for tensor in tensors]
        self._results |= {id(tensor): result for tensor, result in zip(tensors, node.outputs, strict=True)}

    def finish(self) -> int:
        """Gives pools the rows that replaced what they read; returns the number of these pools."""
        changed = [pool for pool in self._pools if id(pool.inputs[0]) in self._results]
        for pool in changed:
            pool.inputs[0] = self._results[id(pool.inputs[0])]
            pool.attrs["mode"] = "each"
        return len(changed)

    def _rows_of(self, tensor: gs.Tensor) -> gs.Tensor:
        """The first or last tokens' rows of a tensor [T,...]."""
        if id(tensor) in self._results:
            return self._results[id(tensor)]
        if id(tensor) not in self._pooled_rows:
            rows = self._pooled_rows[id(tensor)] = self._variable(tensor)
            pool_tokens(self._editor, tensor, self._boundary, rows, self._mode)
        return self._pooled_rows[id(tensor)]

    def _variable(self, tensor: gs.Tensor) -> gs.Variable:
        return self._editor.variable(f"{tensor.name}_{self._mode}", tensor.dtype)


def _movable(graph: gs.Graph, analysis: Analysis, pools: list[gs.Node]) -> dict[int, RowInputs]:
    """The nodes, by id, that compute rows which only `pools` need, with their inputs [T,...].

    Of all nodes that compute rows, those that something else needs, or that read what no pool can take, are removed
    until neither kind is left.
    """
    if not pools:
        return {}
    taking = {id(pool) for pool in pools}
    row_inputs = {id(node): rows for node in graph.nodes if (rows := _row_inputs(analysis, node))}

    def fits(node: gs.Node) -> bool:
        readers = [reader for tensor in node.outputs for reader in tensor.outputs]
        if any(is_output(graph, tensor) for tensor in node.outputs):
            return False
        inputs = [node.inputs[position] for position in row_inputs[id(node)]]
        return all(id(reader) in row_inputs or id(reader) in taking for reader in readers) and all(
            id(producer(tensor)) in row_inputs or _can_be_pooled(analysis, tensor) for tensor in inputs
        )

    before = len(row_inputs) + 1
    while len(row_inputs) < before:
        before = len(row_inputs)
        for node in reversed(graph.nodes):
            if id(node) in row_inputs and not fits(node):
                del row_inputs[id(node)]
    return _with_gemms(graph, row_inputs)


def _can_be_pooled(analysis: Analysis, tensor: gs.Tensor) -> bool:
    facts = analysis[tensor]
    return facts.rank == 2 and facts.dtype == "float32"


def _with_gemms(graph: gs.Graph, movable: Mapping[int, RowInputs]) -> dict[int, RowInputs]:
    """The nodes that are connected with a GEMM."""
    rows_needed, waiting = (
        dict[int, RowInputs](),
        [node for node in graph.nodes if id(node) in movable and node.op == "MatMul"],
    )
    while waiting:
        node = waiting.pop()
        if id(node) in rows_needed or id(node) not in movable:
            continue
        rows_needed[id(node)] = movable[id(node)]
        waiting += [reader for tensor in node.outputs for reader in tensor.outputs]
        makers = [producer(node.inputs[position]) for position in movable[id(node)]]
        waiting += [maker for maker in makers if maker is not None]
    return rows_needed


def _row_inputs(analysis: Analysis, node: gs.Node) -> RowInputs:
    """The inputs [T,...] of a node whose results [T,...] are computed row by row; none for any other node.

    Zeros give finite numbers in all of these nodes.
    """
    rule = _RULES.get(node.op) if is_standard(node, node.op) or is_padfree(node, "PadfreeLayerNorm") else None
    if rule is None:
        return ()
    outputs = [analysis[tensor].shape for tensor in present(node.outputs)]
    if any(not shape or shape[0] != T for shape in outputs):
        return ()
    rows = list[int]()
    for position, tensor in enumerate(node.inputs):
        shape = () if tensor.is_empty() else analysis[tensor].shape
        if shape is None or any(size.constant() is None for size in shape[1:]):
            return ()
        if shape and shape[0] == T:
            rows.append(position)
        elif shape and shape[0].constant() is None:
            return ()
    return tuple(rows) if rule(analysis, node, tuple(rows)) else ()


Rule = Callable[[Analysis, gs.Node, RowInputs], bool]
"""Whether a node computes its results row by row from those of its inputs that are [T,...]."""


def _layer_norm(_: Analysis, node: gs.Node, _rows: RowInputs) -> bool:
    return bool(node.attrs["epsilon"] > 0)


def _gemm(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    weight = node.inputs[1]
    return isinstance(weight, gs.Constant) and len(weight.shape) < 3 and _keeps_rows(analysis, node, rows)


def _elementwise(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    """Whether all operands [T,...] have the result's rank, and no other has more than one row."""
    rank = analysis[node.outputs[0]].rank or 0
    for position, tensor in enumerate(node.inputs):
        shape = () if tensor.is_empty() else analysis[tensor].shape or ()
        if len(shape) != rank if position in rows else len(shape) == rank and shape[0].constant() != 1:
            return False
    return bool(rows)


def _power(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    exponent = analysis[node.inputs[1]].scalar()
    return exponent is not None and exponent > 0 and _elementwise(analysis, node, rows)


def _quotient(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    divisor = node.inputs[1]
    return isinstance(divisor, gs.Constant) and bool(divisor.values.all()) and _elementwise(analysis, node, rows)


def _keeps_rows(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    """Whether a node leaves the rows of its first input, or of all that it joins, in their places."""
    every = tuple(range(len(node.inputs))) if node.op == "Concat" else (0,)
    return rows == every and analysis.axes_in_result(node)[:1] == (0,)


def _reshape(analysis: Analysis, node: gs.Node, rows: RowInputs) -> bool:
    """Whether the target of a Reshape names all axes except that of rows, and leaves each row its elements."""
    target = analysis[node.inputs[1]].plain_integers()
    if not target or target[0] not in (-1, 0) or any(size <= 0 for size in target[1:]):
        return False
    return not (target[0] == 0 and node.attrs.get("allowzero", 0)) and _keeps_rows(analysis, node, rows)


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys((item.name for item in OPERATORS.values() if item.finite), _elementwise),
        **dict.fromkeys(("Concat", "Slice", "Softmax", "Split", "Transpose"), _keeps_rows),
        "Div": _quotient,
        "MatMul": _gemm,
        "PadfreeLayerNorm": _layer_norm,
        "Pow": _power,
        "Reshape": _reshape,
    }
)
