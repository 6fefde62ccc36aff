# SPDX-License-Identifier: Apache-2.0
"""Norms: with a residual and a bias before them, with table look-ups before them, or alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs
from onnx import TensorProto

from .expansion import Expansion, NotImportable

# Operators whose default epsilon is 1e-12; that of the others is 1e-5.
_SMALL_EPSILON = frozenset({"EmbedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})


def normalize(e: Expansion, x: gs.Tensor, gamma: gs.Tensor, beta: gs.Tensor | None, *, rms: bool) -> gs.Tensor:
    """Layer norm or RMS norm over the last axis, written out so that it is valid in every opset."""
    if not rms:
        x = e.op("Sub", x, e.along("ReduceMean", x, -1, keepdims=1))
    square = e.along("ReduceMean", e.op("Pow", x, 2.0), -1, keepdims=1)
    epsilon = e.number("epsilon", 1e-12 if e.node.op in _SMALL_EPSILON else 1e-5)
    root = e.op("Sqrt", e.op("Add", square, epsilon))
    result = e.op("Mul", e.op("Div", x, root), gamma)
    return result if beta is None else e.op("Add", result, beta)


def norm(e: Expansion) -> gs.Tensor:
    """LayerNormalization (before opset 17) and SimplifiedLayerNormalization, which onnxruntime has in ONNX's domain."""
    e.refuse_outputs(mean=1, deviation=2)
    x, rms = e.input(0, "tensor"), e.node.op == "SimplifiedLayerNormalization"
    axis = e.integer("axis", -1)
    if axis != -1 and axis != len(e.shape(x, "tensor")) - 1:
        raise NotImportable(f"it is not over the last axis alone (axis {axis})")
    return normalize(e, x, e.input(1, "scale"), None if rms else e.optional_input(2), rms=rms)


def skip_norm(e: Expansion) -> Sequence[gs.Tensor | None]:
    """SkipLayerNormalization, SkipSimplifiedLayerNormalization: the norm of input + bias + residual, and that sum."""
    e.refuse_outputs(mean=1, deviation=2)
    rms = e.node.op == "SkipSimplifiedLayerNormalization"
    beta, bias = (None, e.optional_input(3)) if rms else (e.optional_input(3), e.optional_input(4))
    total = e.sum(e.input(0, "tensor"), bias, e.input(1, "residual"))
    return [normalize(e, total, e.input(2, "scale"), beta, rms=rms), None, None, total]


def embedding(e: Expansion) -> Sequence[gs.Tensor | None]:
    """EmbedLayerNormalization: the norm of look-ups by ids, positions and token types; the mask's lengths; the sum."""
    ids, mask, positions = e.uncast(e.input(0, "ids")), e.optional_input(7), e.optional_input(8)
    types, type_table = e.optional_input(1), e.optional_input(4)
    terms = [e.op("Gather", e.input(2, "word table"), ids, axis=0)]
    if types is not None and type_table is not None:
        terms.append(e.op("Gather", type_table, e.uncast(types), axis=0))
    rows = e.uncast(positions) if positions is not None else e.reshape(e.slots(ids, 1), 1, -1)
    terms.append(e.op("Gather", e.input(3, "position table"), rows, axis=0))
    total = e.sum(*terms)
    lengths = None
    if mask is not None:
        lengths = e.op("Cast", e.along("ReduceSum", e.uncast(mask), 1, keepdims=0), to=TensorProto.INT32)
    elif e.is_read(1):
        raise NotImportable("its mask_index is read, but it has no mask (input 7)")
    return [normalize(e, total, e.input(5, "scale"), e.optional_input(6), rms=False), lengths, total]
