# SPDX-License-Identifier: Apache-2.0
"""Attention on packed tokens: PadfreeAttention, with one MatMul for the Q, K and V projections of one input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, node_name, once
from ...analysis.symbolic import Analysis
from ...match import IF_CONTIGUOUS, Miss, NoMatch
from ...match.attention.attention import Attention, Surroundings, is_candidate, match, surroundings
from ...match.chains import TOKENS_FIRST, Rotation
from ...match.masks import TableRows, check_sequences, check_slots, choose_mask, inputs_in_running_sums
from ...match.positions import Bias, DisentangledTables
from ...match.values import Keeping
from ..base import Boundary, PassResult, add_boundary, pack, pack_int32, unpack
from ..positions.positions import Positions
from ..shapes import shape_source
from .kept_slots import keep_nodes
from .projections import Projections

NAME = "attention"
TAKES_LENGTHS = "attention takes lengths instead of a mask, as in the original"


def attention(
    padded: bool, mask: str | None, longest: int | None = None, *, contiguous: bool = False
) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass for one interface: in the packed one, tokens must not have values that the mask masks.

    `mask` is the input that the user calls the padding mask, `longest` the length that tables allow, None: any.
    `contiguous`: masks have no holes.
    """

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        return _attention(graph, analysis, padded, mask, longest, contiguous)

    return run


def _attention(
    graph: gs.Graph, analysis: Analysis, padded: bool, mask_name: str | None, longest: int | None, contiguous: bool
) -> PassResult:
    """Replaces every attention whose mask is the padding mask, and adds the boundary that all passes use.

    What cannot be replaced stays padded. Raises RewriteError where there is no attention, or no proof of a mask.
    """
    matches, misses, rest = list[Attention](), list[Miss](), list[gs.Node]()
    around = surroundings(graph, analysis, longest)
    rows = around.rows
    attentions = [node for node in graph.nodes if is_candidate(analysis, node)]
    check_slots(graph, analysis)
    for node in attentions:
        item = _match(around, node)
        if isinstance(item, Miss):
            misses.append(item)
            rest.append(node)
        else:
            matches.append(item)
    rule = choose_mask(graph, analysis, rows, [item.mask.keeps for item in matches], rest, misses, mask_name)
    check_sequences(graph, analysis, attentions, rule.source if rule is not None and rule.plain else None)
    apart = set[str]()  # why masks must have no holes
    for item in list(matches):
        reason, distances = _other_mask(item, rule, padded), _distances(item, rule) if padded else None
        if reason is None and distances is not None and contiguous:
            apart.add(distances.partition(": ")[2])
        elif reason is None and distances is not None:
            reason = f"{distances}; {IF_CONTIGUOUS}"
        if reason is not None:
            matches.remove(item)
            misses.append(Miss(item.node, reason))
    editor = Editor(graph)
    boundary = add_boundary(editor, _token_slots(editor, rule))
    replace = _Replacement(editor, analysis, boundary)
    for item in matches:
        replace(item)
    excluded_ids = () if rule is None or padded else _excluded_ids(rule, rows)
    lengths = (TAKES_LENGTHS,) if any(item.mask.by_length for item in matches) else ()
    return PassResult(NAME, len(matches), tuple(misses), excluded_ids, lengths, tuple(apart))


def _match(around: Surroundings, node: gs.Node) -> Attention | Miss:
    try:
        return match(around, node)
    except NoMatch as reason:
        summed = ", ".join(f"'{name}'" for name in sorted(inputs_in_running_sums(around.analysis, node)))
        detail = f"; running sums of {summed} tell which keys a query sees, as where a row holds several sequences"
        return Miss(node_name(node), f"{reason}{detail if summed else ''}")


def _other_mask(item: Attention, rule: Keeping | None, padded: bool) -> str | None:
    """Why an attention stays padded because of what its mask keeps; None where it does not."""
    if item.mask.keeps == rule:
        return None
    if item.mask.keeps is not None:
        return f"node '{item.node}' is masked by '{item.mask.keeps}', padding by '{rule}'"
    if not padded and item.mask.window.right == 0:
        return None  # a query sees only what is before it, where there is no padding
    return f"no mask reaches node '{item.node}': it reads padding"


def _distances(item: Attention, rule: Keeping | None) -> str | None:
    """Why an attention stays padded where masks may have holes; None where it does not."""
    if rule is None or not item.by_distance:
        return None
    what = "a window" if item.bias is None else "a bias by distance"
    return (
        f"node '{item.node}' has {what}: under a mask with holes the original measures distances between slots, and "
        "not between tokens"
    )


def _token_slots(editor: Editor, rule: Keeping | None) -> gs.Tensor:
    """int32 [B,S]: not 0 where a slot is kept; without a mask all are."""
    if rule is not None:
        return keep_nodes(editor, next(tensor for tensor in editor.graph.inputs if tensor.name == rule.source), rule)
    shape = editor.op("Shape", shape_source(editor.graph), stem="slot_shape")
    value = gs.Constant("value", np.ones(1, np.int32))
    return editor.op("ConstantOfShape", shape, stem="padfree_mask", value=value)


def _excluded_ids(rule: Keeping, rows: TableRows) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The values that tokens must not have, of an input that holds more than its mask."""
    count = rows.get(rule.source)
    if rule.plain or count is None:
        return ()
    values = np.arange(count)
    is_token = {
        "except": ~np.isin(values, rule.values),
        "only": np.isin(values, rule.values),
        "above": values > min(rule.values),
        "below": values < min(rule.values),
    }[rule.form]
    return ((rule.source, tuple(int(value) for value in values[~is_token])),)


class _Replacement:
    """Replaces attentions of one graph by PadfreeAttention, with PadfreeRotary before it."""

    def __init__(self, editor: Editor, analysis: Analysis, boundary: Boundary) -> None:
        self._editor = editor
        self._analysis = analysis
        self._boundary = boundary
        self._projections = Projections(editor, analysis)
        self._positions = Positions(editor, boundary)
        self._constants: dict[tuple[str, bytes], gs.Constant] = {}

    def __call__(self, item: Attention) -> None:
        qkv_layout, tensors = self._projections.arrange(item)
        dtype = self._analysis[item.context].dtype
        packed = [pack(self._editor, tensor, self._boundary, dtype) for tensor in tensors]
        heads, fewer = item.num_heads, item.k.num_heads
        if qkv_layout == "separate":
            parts = ((item.q, heads), (item.k, fewer))
            packed[:2] = [
                self._rotate(tensor, source.rotation, count, item.head_size)
                for tensor, (source, count) in zip(packed, parts, strict=False)
            ]
        else:
            packed[0] = self._rotate(packed[0], item.q.rotation, heads + fewer, item.head_size)
        result = self._editor.variable("attention", None if dtype is None else np.dtype(dtype))
        window, bias = item.mask.window, item.bias
        self._editor.padfree(
            "PadfreeAttention",
            [*packed, self._boundary.cu_seqlens, *self._of_bias(bias)],
            [result],
            num_heads=heads,
            num_kv_heads=fewer,
            head_size=item.head_size,
            scale=item.scale,
            qkv_layout=qkv_layout,
            window_left=window.left,
            window_right=window.right,
            bias="none" if bias is None else bias.kind,
            bias_range=0 if bias is None else bias.range,
            has_k_position=int(isinstance(bias, DisentangledTables) and bias.k_position is not None),
            has_q_position=int(isinstance(bias, DisentangledTables) and bias.q_position is not None),
            y_scale=1.0,
        )
        self._write(result, item, dtype)

    def _write(self, result: gs.Tensor, item: Attention, dtype: str | None) -> None:
        """Writes the packed context to where the original has it."""
        if self._analysis[item.context].rank != 4:
            unpack(self._editor, result, self._boundary, dtype, item.context)
            return
        tensor = unpack(self._editor, result, self._boundary, dtype)
        heads = self._editor.reshape(tensor, 0, 0, item.num_heads, item.head_size, stem=f"{item.context.name}_heads")
        self._editor.op("Transpose", heads, perm=list(TOKENS_FIRST), output=item.context)

    def _rotate(self, x: gs.Tensor, rotation: Rotation | None, heads: int, size: int) -> gs.Tensor:
        """The tensor [T,...] with its first heads rotated."""
        if rotation is None:
            return x
        result = self._editor.variable("rotated", x.dtype)
        frequencies = self._constant("frequencies", np.asarray([rotation.frequencies], np.float32))
        self._editor.padfree(
            "PadfreeRotary",
            [x, self._position_inputs(rotation), frequencies],
            [result],
            head_size=size,
            num_heads=heads,
            pairing=rotation.pairing or "half",
        )
        return result

    def _position_inputs(self, rotation: Rotation) -> gs.Tensor:
        """int32 [T]: the positions of tokens, either counted or read from an input."""
        if rotation.positions is None:
            return self._positions.slots()
        tensor = next(item for item in self._editor.graph.inputs if item.name == rotation.positions)
        return pack_int32(self._editor, tensor, self._boundary, self._analysis[tensor].dtype)

    def _of_bias(self, bias: Bias | DisentangledTables | None) -> list[gs.Tensor]:
        if bias is None:
            return []
        if isinstance(bias, DisentangledTables):
            tables = {"k_position": bias.k_position, "q_position": bias.q_position}
            return [self._constant(name, values) for name, values in tables.items() if values is not None]
        if bias.slopes is not None:
            return [self._constant("slopes", np.asarray(bias.slopes, np.float32))]
        return [self._constant("distance_bias", np.asarray(bias.distances, np.float32))]

    def _constant(self, stem: str, values: np.ndarray) -> gs.Constant:
        """A constant that layers share."""
        return once(self._constants, (stem, values.tobytes()), lambda: self._editor.constant(stem, values))
