# SPDX-License-Identifier: Apache-2.0
"""The tensors that hold Q, K and V: one where projections of one input can be put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, made_by, token_axis
from ...analysis.symbolic import Analysis
from ...files import join_columns, zeros_for
from ...match import NoMatch
from ...match.attention import Attention
from ...match.chains import HEADS_FIRST, TOKENS_FIRST, HeadsSource, trace_heads


@dataclass(frozen=True)
class Linear:
    """x W + b, of which some columns are taken; the bias may be absent."""

    x: gs.Tensor
    weight: gs.Constant  # [K,N]
    bias: gs.Constant | None
    columns: np.ndarray  # of W and b, in the order in which they are wanted

    @property
    def is_whole(self) -> bool:
        """Whether all columns are taken in their order."""
        return np.array_equal(self.columns, np.arange(self.weight.shape[1]))


class Projections:
    """Puts the Q, K and V projections of one input together, once for weights that layers share."""

    def __init__(self, editor: Editor, analysis: Analysis) -> None:
        self._editor = editor
        self._analysis = analysis
        self._weights: dict[tuple[tuple[str, bytes], ...], gs.Constant] = {}

    def arrange(self, item: Attention) -> tuple[str, list[gs.Tensor]]:
        """The order (`qkv_layout`) and the tensors [B,S,...] that hold Q, K and V."""
        heads, fewer, size = item.num_heads, item.k.num_heads, item.head_size
        sources = (item.q, item.k, item.v)
        plain = np.arange((heads + 2 * fewer) * size).reshape(-1, size)
        parts = (plain[:heads], plain[heads : heads + fewer], plain[heads + fewer :])
        alike = _turning(item.q) == _turning(item.k)
        together = all(source.tensor is item.q.tensor and source.order is None for source in sources)
        if together and self._width(item.q) == plain.size:
            if alike and _are(sources, parts):
                return "3HD", [item.q.tensor]
            by_head = np.arange(plain.size).reshape(-1, 3, size)
            if heads == fewer and item.q.rotation is None and _are(sources, [by_head[:, i] for i in range(3)]):
                return "H3D", [item.q.tensor]
        fused = self._fuse(sources) if alike else None
        if fused is not None:
            return "3HD", [fused]
        return "separate", [self._select(source) for source in sources]

    def _fuse(self, sources: Sequence[HeadsSource]) -> gs.Tensor | None:
        """The tensor [B,S,...] with q, k and v side by side, or None where they are not projections of one input."""
        candidates = [self._linear(source) for source in sources]
        linears = [item for item in candidates if item is not None]
        if len(linears) != len(sources) or any(item.x is not linears[0].x for item in linears):
            return None
        if len({str(item.weight.dtype) for item in linears}) != 1 or not _take_all(linears):
            return None
        editor = self._editor
        weight = self._concatenate([(item.weight, item) for item in linears], "qkv_weight")
        result = editor.op("MatMul", linears[0].x, weight, stem="qkv")
        if all(item.bias is None for item in linears):
            return result
        bias = self._concatenate([(item.bias or zeros_for(item.weight), item) for item in linears], "qkv_bias")
        return editor.op("Add", result, bias, stem="qkv_with_bias")

    def _concatenate(self, constants: list[tuple[gs.Constant, Linear]], stem: str) -> gs.Constant:
        key = tuple((constant.name, linear.columns.tobytes()) for constant, linear in constants)
        if key not in self._weights and all(linear.is_whole for _, linear in constants):
            self._weights[key] = join_columns(self._editor.fresh(stem), [constant for constant, _ in constants])
        if key not in self._weights:
            parts = [
                constant.values if linear.is_whole else constant.values[..., linear.columns]
                for constant, linear in constants
            ]
            self._weights[key] = self._editor.constant(stem, np.concatenate(parts, axis=-1))
        return self._weights[key]

    def _linear(self, source: HeadsSource) -> Linear | None:
        tensor, bias = source.tensor, None
        if source.order is not None:
            return self._behind_a_bias(source)
        add = made_by(tensor, "Add")
        if add is not None:
            constants = [item for item in add.inputs if isinstance(item, gs.Constant)]
            others = [item for item in add.inputs if not isinstance(item, gs.Constant)]
            if len(constants) != 1 or len(constants[0].shape) != 1:
                return None
            bias, tensor = constants[0], others[0]
        matmul = made_by(tensor, "MatMul")
        if matmul is None or not isinstance(matmul.inputs[1], gs.Constant) or len(matmul.inputs[1].shape) != 2:
            return None
        if bias is not None and tuple(bias.shape) != tuple(matmul.inputs[1].shape[1:]):
            return None
        if self._analysis[matmul.inputs[0]].rank != 3:
            return None
        return Linear(matmul.inputs[0], matmul.inputs[1], bias, source.columns.reshape(-1))

    def _behind_a_bias(self, source: HeadsSource) -> Linear | None:
        """The GEMM of heads whose bias is added after they are split, as in DeBERTa, with that bias."""
        add, shape = made_by(source.tensor, "Add"), self._analysis[source.tensor].shape or ()
        constants = [] if add is None else [item for item in add.inputs if isinstance(item, gs.Constant)]
        if add is None or source.order is None or len(constants) != 1 or source.rotation is not None:
            return None
        try:
            bias = np.broadcast_to(constants[0].values, [size.constant() or 1 for size in shape])
            first = TOKENS_FIRST if token_axis(shape) == 1 else HEADS_FIRST
            others = [item for item in add.inputs if item is not constants[0]]
            heads = trace_heads(self._analysis, others[0], "a GEMM", perm=first)
        except (NoMatch, ValueError):  # the latter for a bias that differs between tokens
            return None
        columns = heads.columns.reshape(-1)[source.columns]
        plain = heads.order is None and heads.factor == 1.0
        linear = self._linear(HeadsSource(heads.tensor, columns, 1.0)) if plain else None
        if linear is None:
            return None
        own = linear.bias or zeros_for(linear.weight)
        values = own.values.copy()
        values[linear.columns] += bias.transpose(source.order).reshape(-1)[source.columns.reshape(-1)]
        return replace(linear, bias=gs.Constant(f"{own.name}_{constants[0].name}", values))

    def _width(self, source: HeadsSource) -> int | None:
        shape = self._analysis[source.tensor].shape
        return None if shape is None else shape[2].constant()

    def _select(self, source: HeadsSource) -> gs.Tensor:
        """The source's columns in the order [H,D]: itself, or a Gather of its last axis."""
        tensor, width = source.tensor, self._width(source)
        count = source.columns.size
        if source.order is not None:
            shape = self._analysis[tensor].shape or ()
            width = int(np.prod([shape[axis].constant() or 0 for axis in source.order[2:]]))
            tensor = self._joined_heads(source, width)
        if np.array_equal(source.columns.reshape(-1), np.arange(count)) and width == count:
            return tensor
        columns = self._editor.constant("columns", source.columns.reshape(-1).astype(np.int64))
        return self._editor.op("Gather", tensor, columns, stem="heads", axis=2)

    def _joined_heads(self, source: HeadsSource, width: int) -> gs.Tensor:
        """Heads [B,S,H,D] or [B,H,S,D] as [B,S,H*D]."""
        editor, tensor, order = self._editor, source.tensor, source.order
        if order is not None and order != (0, 1, 2, 3):
            tensor = editor.op("Transpose", tensor, stem="heads", perm=list(order))
        return editor.with_stem("heads").reshape(tensor, 0, 0, width)


def _are(sources: Sequence[HeadsSource], parts: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(source.columns, part) for source, part in zip(sources, parts, strict=True))


def _turning(source: HeadsSource) -> tuple[tuple[float, ...], str | None] | None:
    """What rotates heads: the frequencies, and the input of positions, if any; None where nothing does."""
    return None if source.rotation is None else (source.rotation.frequencies, source.rotation.positions)


def _take_all(linears: Sequence[Linear]) -> bool:
    """Whether all columns of every GEMM are taken; otherwise the GEMM would stay, and columns be computed twice."""
    columns_by_weight: dict[str, set[int]] = {}
    for item in linears:
        columns_by_weight.setdefault(item.weight.name, set()).update(item.columns.tolist())
    return all(len(columns_by_weight[item.weight.name]) == item.weight.shape[1] for item in linears)
