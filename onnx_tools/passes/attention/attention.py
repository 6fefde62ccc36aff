# SPDX-License-Identifier: Apache-2.0
"""Attention on packed tokens: PadfreeAttention, with one MatMul for the Q, K and V projections of one input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis.graph import Editor, made_by, node_name
from ...analysis.symbolic import Analysis
from ..base import Boundary, Miss, NoMatch, PassResult, add_boundary, pack, unpack
from ..masks.choice import choose_mask
from ..masks.mask import Rows
from ..masks.mask_values import Keeping, keep_nodes, table_rows
from ..masks.sequences import check_places, check_sequences
from ..simplify import shape_source
from .attention_match import Attention, is_candidate, match
from .heads import HeadsSource

NAME = "attention"
TAKES_LENGTHS = "attention takes lengths in the place of a mask, as in the original"


def attention(padded: bool, mask: str | None) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass for one interface: packed, tokens must not have values that the mask masks.

    `mask` is the input that the user calls the padding mask.
    """

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        return _attention(graph, analysis, padded, mask)

    return run


def _attention(graph: gs.Graph, analysis: Analysis, padded: bool, named: str | None) -> PassResult:
    """Replaces every attention whose mask is the padding mask, and adds the boundary that all passes use.

    What cannot be replaced stays padded. Raises RewriteError where there is no attention, or no proof of a mask.
    """
    found, missed, rest = list[Attention](), list[Miss](), list[gs.Node]()
    rows = {tensor.name: table_rows(tensor) for tensor in graph.inputs}
    attentions = [node for node in graph.nodes if is_candidate(analysis, node)]
    check_places(graph, analysis)
    for node in attentions:
        item = _matched(analysis, node, rows)
        if isinstance(item, Miss):
            missed.append(item)
            rest.append(node)
        else:
            found.append(item)
    rule = choose_mask(graph, analysis, rows, [item.mask.keeps for item in found], rest, missed, named)
    check_sequences(graph, analysis, attentions, rule.source if rule is not None and rule.plain else None)
    for item in [item for item in found if item.mask.keeps != rule]:
        found.remove(item)
        missed.append(Miss(item.node, _other_mask(item, rule)))
    editor = Editor(graph)
    boundary = add_boundary(editor, _kept_slots(editor, rule))
    projections = Projections(editor, analysis)
    for item in found:
        _replace(editor, analysis, boundary, projections, item)
    excluded = () if rule is None or padded else _excluded(rule, rows)
    lengths = (TAKES_LENGTHS,) if any(item.mask.by_length for item in found) else ()
    return PassResult(NAME, len(found), tuple(missed), excluded, lengths)


def _matched(analysis: Analysis, node: gs.Node, rows: Rows) -> Attention | Miss:
    try:
        return match(analysis, node, rows)
    except NoMatch as reason:
        return Miss(node_name(node), str(reason))


def _other_mask(item: Attention, rule: Keeping | None) -> str:
    if item.mask.keeps is None:
        return f"no mask reaches node '{item.node}': it reads padding"
    return f"node '{item.node}' is masked by '{item.mask.keeps}', padding by '{rule}'"


def _kept_slots(editor: Editor, rule: Keeping | None) -> gs.Tensor:
    """int32 [B,S]: not 0 where a slot is kept; without a mask all are."""
    if rule is not None:
        return keep_nodes(editor, next(tensor for tensor in editor.graph.inputs if tensor.name == rule.source), rule)
    shape = editor.node("Shape", [shape_source(editor.graph)], stem="slot_shape", dtype=np.dtype(np.int64))
    value = gs.Constant("value", np.ones(1, np.int32))
    return editor.node(
        "ConstantOfShape", [shape], stem="padfree_mask", dtype=np.dtype(np.int32), attrs={"value": value}
    )


def _excluded(rule: Keeping, rows: Rows) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The values that tokens must not have, of an input that holds more than its mask."""
    count = rows.get(rule.source)
    if rule.plain or count is None:
        return ()
    values = np.arange(count)
    kept = {
        "except": ~np.isin(values, rule.values),
        "only": np.isin(values, rule.values),
        "above": values > min(rule.values),
        "below": values < min(rule.values),
    }[rule.form]
    return ((rule.source, tuple(int(value) for value in values[~kept])),)


@dataclass(frozen=True)
class Linear:
    """x W + b; the bias may be absent."""

    x: gs.Tensor
    weight: gs.Constant  # [K,N]
    bias: gs.Constant | None


class Projections:
    """Puts the Q, K and V projections of one input together, once for weights that layers share."""

    def __init__(self, editor: Editor, analysis: Analysis) -> None:
        self._editor = editor
        self._analysis = analysis
        self._weights: dict[tuple[str, ...], gs.Constant] = {}

    def fused(self, parts: tuple[gs.Tensor, gs.Tensor, gs.Tensor]) -> gs.Tensor | None:
        """The tensor [B,S,3E] with q, k and v side by side, or None where they are not projections of one input."""
        found = [self._linear(part) for part in parts]
        linears = [item for item in found if item is not None]
        if len(linears) != 3 or any(item.x is not linears[0].x for item in linears):
            return None
        if len({str(item.weight.dtype) for item in linears}) != 1:
            return None
        editor = self._editor
        weight = self._joined([item.weight for item in linears], "qkv_weight")
        result = editor.node("MatMul", [linears[0].x, weight], stem="qkv", dtype=weight.dtype)
        if all(item.bias is None for item in linears):
            return result
        bias = self._joined([item.bias or self._zeros(item) for item in linears], "qkv_bias")
        return editor.node("Add", [result, bias], stem="qkv_with_bias", dtype=weight.dtype)

    def _zeros(self, linear: Linear) -> gs.Constant:
        return gs.Constant(f"zeros_for_{linear.weight.name}", np.zeros(linear.weight.shape[-1], linear.weight.dtype))

    def _joined(self, constants: list[gs.Constant], stem: str) -> gs.Constant:
        key = tuple(constant.name for constant in constants)
        if key not in self._weights:
            values = np.concatenate([constant.values for constant in constants], axis=-1)
            self._weights[key] = self._editor.constant(stem, values)
        return self._weights[key]

    def _linear(self, tensor: gs.Tensor) -> Linear | None:
        bias: gs.Constant | None = None
        add = made_by(tensor, "Add")
        if add is not None:
            constants = [item for item in add.inputs if isinstance(item, gs.Constant)]
            others = [item for item in add.inputs if not isinstance(item, gs.Constant)]
            if len(constants) != 1 or len(constants[0].shape) != 1:
                return None
            bias, tensor = constants[0], others[0]
        product = made_by(tensor, "MatMul")
        if product is None or not isinstance(product.inputs[1], gs.Constant) or len(product.inputs[1].shape) != 2:
            return None
        if bias is not None and tuple(bias.shape) != tuple(product.inputs[1].shape[1:]):
            return None
        if self._analysis[product.inputs[0]].rank != 3:
            return None
        return Linear(product.inputs[0], product.inputs[1], bias)


def _replace(editor: Editor, analysis: Analysis, boundary: Boundary, projections: Projections, item: Attention) -> None:
    qkv_layout, tensors = _arranged(editor, analysis, projections, item)
    dtype = analysis[item.context].dtype
    packed = [pack(editor, tensor, boundary, dtype) for tensor in tensors]
    result = editor.variable("attention", None if dtype is None else np.dtype(dtype))
    editor.padfree(
        "PadfreeAttention",
        [*packed, boundary.cu_seqlens],
        [result],
        num_heads=item.num_heads,
        num_kv_heads=item.num_heads,
        head_size=item.head_size,
        scale=item.scale,
        qkv_layout=qkv_layout,
        has_qkv_bias=0,
        has_tasks=0,
        max_seq_len=0,
        window_left=-1,
        window_right=-1,
        bias="none",
        bias_range=0,
        has_k_position=0,
        has_q_position=0,
    )
    unpack(editor, result, boundary, dtype, item.context)


def _arranged(
    editor: Editor, analysis: Analysis, projections: Projections, item: Attention
) -> tuple[str, list[gs.Tensor]]:
    """The attribute qkv_layout, and the tensors [B,S,...] that hold Q, K and V."""
    heads, size = item.num_heads, item.head_size
    sources = (item.q, item.k, item.v)
    plain = np.arange(heads * size).reshape(heads, size)
    together = all(source.tensor is item.q.tensor and source.order is None for source in sources)
    if together and _width(analysis, item.q) == 3 * heads * size:
        if all(np.array_equal(source.columns, plain + i * heads * size) for i, source in enumerate(sources)):
            return "3HD", [item.q.tensor]
        by_head = np.arange(3 * heads * size).reshape(heads, 3, size)
        if all(np.array_equal(source.columns, by_head[:, i]) for i, source in enumerate(sources)):
            return "H3D", [item.q.tensor]
    whole = [_selected(editor, analysis, source, plain) for source in sources]
    fused = projections.fused((whole[0], whole[1], whole[2]))
    return ("3HD", [fused]) if fused is not None else ("separate", whole)


def _width(analysis: Analysis, source: HeadsSource) -> int | None:
    shape = analysis[source.tensor].shape
    return None if shape is None else shape[2].constant()


def _selected(editor: Editor, analysis: Analysis, source: HeadsSource, plain: np.ndarray) -> gs.Tensor:
    """The source's columns in the order [H,D]: itself, or a Gather of its last axis."""
    tensor, width = source.tensor, _width(analysis, source)
    if source.order is not None:
        tensor, width = _joined_heads(editor, source), plain.size
    if np.array_equal(source.columns, plain) and width == plain.size:
        return tensor
    columns = editor.constant("columns", source.columns.reshape(-1).astype(np.int64))
    return editor.node("Gather", [tensor, columns], stem="heads", dtype=tensor.dtype, attrs={"axis": 2})


def _joined_heads(editor: Editor, source: HeadsSource) -> gs.Tensor:
    """Heads [B,S,H,D] or [B,H,S,D] as [B,S,H*D]."""
    tensor, order = source.tensor, source.order
    if order is not None and order != (0, 1, 2, 3):
        tensor = editor.node("Transpose", [tensor], stem="heads", dtype=tensor.dtype, attrs={"perm": list(order)})
    shape = editor.constant("heads_shape", np.asarray([0, 0, source.columns.size], np.int64))
    return editor.node("Reshape", [tensor, shape], stem="heads", dtype=tensor.dtype)
