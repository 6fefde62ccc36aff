# SPDX-License-Identifier: Apache-2.0
"""What each operator computes, in standard ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

from .attention_body import attention
from .body_builder import BodyBuilder
from .catalog import MOMENTS_GROUP
from .ragged import grid_token, is_live, pad_index, ragged_from_cu_seqlens, token_slot
from .spec import AttributeValue


def _index(b: BodyBuilder) -> None:
    kept = b.op("Cast", b.op("Not", b.op("Equal", "mask", b.const(0, np.int32))), to=TensorProto.INT64)
    flat = b.op("Reshape", kept, b.const([-1]))
    b.output_index("token_index", b.op("Squeeze", b.op("NonZero", flat), b.const([0])))
    b.output_index("seq_lens", b.reduce("ReduceSum", kept, 1))
    b.output_index("num_tokens", b.reduce("ReduceSum", flat, 0))


def _pack(b: BodyBuilder) -> None:
    slots = b.op("Mul", b.dim("x", 0), b.dim("x", 1))
    flat = b.reshape("x", slots, b.dims_from("x", 2))
    b.output_as_is("packed", b.gather_rows(flat, b.load_index("token_index")))


def _unpack(b: BodyBuilder) -> None:
    batch, length = b.op("Shape", "seq_lens"), b.dim("extent", -1)
    slots = b.op("Mul", batch, length)
    index = b.load_index("token_index")
    inside = b.op("And", b.op("GreaterOrEqual", index, b.const(0)), b.op("Less", index, slots))
    # One slot more than there are takes what goes nowhere.
    nowhere = b.filled(b.op("Add", slots, b.const([1])), -1)
    target = b.op("Where", inside, index, slots)
    source = b.op("ScatterElements", nowhere, target, b.range(b.op("Shape", "token_index")), axis=0)
    rows = b.gather_rows("packed", b.op("Slice", source, b.const([0]), slots))
    b.output_as_is("x", b.reshape(rows, batch, length, b.dims_from("packed", 1)))


def _schedule(b: BodyBuilder) -> None:
    tokens = b.op("Shape", "tokens")
    lens = b.op("Max", b.load_index("seq_lens"), b.const([0]))
    sums = b.op("CumSum", lens, b.const(0))
    # Not Min: onnxruntime 1.31 takes the wrong side for int64 beyond 2^31.
    sums = b.op("Where", b.op("Less", sums, tokens), sums, tokens)
    cu = b.op("Concat", b.const([0]), sums, axis=0)
    b.output_index("cu_seqlens", cu)
    if b.attributes["has_extent"] or b.attributes["has_positions"]:
        sequence, place = token_slot(b, ragged_from_cu_seqlens(b, cu))
        if b.attributes["has_extent"]:
            length = b.op("Shape", "extent")
            slot = b.op("Add", b.op("Mul", sequence, length), place)
            slot = b.op("Where", b.op("Less", place, length), slot, b.const(-1))
            b.output_index("token_index", pad_index(b, slot, tokens, -1))
        if b.attributes["has_positions"]:
            b.output_index("positions", pad_index(b, place, tokens, 0))
    if b.attributes["has_tasks"]:
        b.output_index("tasks", b.filled(b.const([1, 4]), 0))


def _table_rows(b: BodyBuilder, table: str, ids: str) -> str:
    """float32 [T,E]: rows of a table, zeros for ids out of its range (without a copy of the table)."""
    last = b.op("Sub", b.dim(table, 0), b.const([1]))
    near = b.op("Max", b.op("Min", ids, last), b.const([0]))
    rows = b.load(b.op("Gather", table, near, axis=0))
    return b.where_or_zero(b.unsqueeze(b.op("Equal", near, ids), 1), rows)


def _embedding(b: BodyBuilder) -> None:
    tokens = b.op("Shape", "ids")
    ragged = ragged_from_cu_seqlens(b, b.load_index("cu_seqlens"))
    total = _table_rows(b, "word_table", b.load_index("ids"))
    if b.attributes["has_position_table"]:
        if b.attributes["has_positions"]:
            positions = b.load_index("positions")
        else:
            place = pad_index(b, token_slot(b, ragged)[1], tokens, 0)
            positions = b.op("Add", place, b.attribute("position_offset"))
        total = b.op("Add", total, _table_rows(b, "position_table", positions))
    if b.attributes["has_token_types"]:
        total = b.op("Add", total, _table_rows(b, "type_table", b.load_index("token_types")))
    beta = b.load("beta") if b.attributes["has_beta"] else None
    y = b.norm(total, b.load("gamma"), beta, rms=False)
    b.output("y", b.where_or_zero(is_live(b, ragged, tokens), y))


def _rotary(b: BodyBuilder) -> None:
    """Columns as [T,H,2,P] or [T,H,P,2]; angles [T,1,P]."""
    heads, size = b.as_vector(b.attribute("num_heads")), b.as_vector(b.attribute("head_size"))
    width, two = b.op("Mul", heads, size), b.const([2])
    tokens, pairs = b.dim("x", 0), b.op("Div", size, two)
    end = b.const([np.iinfo(np.int64).max])
    rotated = b.load(b.op("Slice", "x", b.const([0]), width, b.const([1])))
    is_half = b.attributes["pairing"] == "half"
    split = b.reshape(rotated, tokens, heads, *((two, pairs) if is_half else (pairs, two)))
    angle = b.op("Mul", b.unsqueeze(_float(b, "positions"), 1, 2), b.unsqueeze("frequencies", 1))
    turned = b.reshape(_turned(b, split, angle, 2 if is_half else 3), tokens, width)
    rest = b.load(b.op("Slice", "x", width, end, b.const([1])))
    b.output("y", b.op("Concat", turned, rest, axis=1))


def _turned(b: BodyBuilder, pairs: str, angle: str, axis: int) -> str:
    """`pairs`, of which `axis` holds first and second, turned by `angle`, which lacks that axis; float32."""
    first, second = (b.op("Gather", pairs, b.const(i), axis=axis) for i in range(2))
    cosine, sine = b.op("Cos", angle), b.op("Sin", angle)
    x = b.op("Sub", b.op("Mul", first, cosine), b.op("Mul", second, sine))
    y = b.op("Add", b.op("Mul", second, cosine), b.op("Mul", first, sine))
    return b.op("Concat", b.unsqueeze(x, axis), b.unsqueeze(y, axis), axis=axis)


def _float(b: BodyBuilder, index: str) -> str:
    """An int32 input as float32."""
    return b.op("Cast", index, to=TensorProto.FLOAT)


def _layer_norm(b: BodyBuilder) -> None:
    total = b.load("x")
    for name in ("bias", "residual"):
        if b.attributes[f"has_{name}"]:
            total = b.op("Add", total, b.load(name))
    beta = b.load("beta") if b.attributes["has_beta"] else None
    b.output("y", b.norm(total, b.load("gamma"), beta, rms=b.attributes["rms"] == 1))
    if b.attributes["has_sum"]:
        b.output("sum", total)


def _linear(b: BodyBuilder) -> None:
    total = b.op("MatMul", b.load("x"), b.load("weight"))
    if b.attributes["has_x_moments"]:
        mean, root = _mean_and_root(b, "x_moments", "x_epsilon")
        if not b.attributes["rms"]:
            total = b.op("Sub", total, b.op("Mul", mean, "column_sums"))
        total = b.op("Div", total, root)
    if b.attributes["has_bias"]:
        total = b.op("Add", total, b.load("bias"))
    if b.attributes["rotary_features"]:
        total = _turned_columns(b, total)
    if b.attributes["gated"]:
        blocks = _blocks(b, total)
        u, v = (b.op("Gather", blocks, b.const(i), axis=2) for i in range(2))  # [T,N/16,8]
        half = b.op("Div", b.dim(total, 1), b.const([2]))
        gate = b.op("Mul", _activated(b, u, b.attributes["activation"]), v)
        b.output("y", b.reshape(gate, b.dim(total, 0), half))
        return
    y = _activated(b, total, b.attributes["activation"])
    if b.attributes["has_residual"]:
        residual = b.load("residual")
        if b.attributes["has_residual_moments"]:
            mean, root = _mean_and_root(b, "residual_moments", "residual_epsilon")
            if not b.attributes["rms"]:
                residual = b.op("Sub", residual, mean)
            residual = b.op("Mul", b.op("Div", residual, root), b.load("residual_scale"))
        y = b.op("Add", y, residual)
    b.output("y", y)
    if b.attributes["has_moments"]:
        b.output_as_is("moments", _moments(b, y))


def _blocks(b: BodyBuilder, columns: str) -> str:
    """[T,N] as [T,N/16,2,8]: blocks of 8 columns and the 8 that belong to them."""
    count = b.op("Div", b.dim(columns, 1), b.const([16]))
    return b.reshape(columns, b.dim(columns, 0), count, b.const([2, 8]))


def _turned_columns(b: BodyBuilder, columns: str) -> str:
    """[T,N] float32 with the pairs among the first rotary_features turned."""
    count, end = b.as_vector(b.attribute("rotary_features")), b.const([np.iinfo(np.int64).max])
    blocks = _blocks(b, b.op("Slice", columns, b.const([0]), count, b.const([1])))
    angle = b.op("Mul", b.unsqueeze(_float(b, "positions"), 1), "frequencies")  # [T,P]
    angle = b.reshape(angle, b.dim(columns, 0), b.op("Div", b.dim(angle, 1), b.const([8])), b.const([8]))
    turned = b.reshape(_turned(b, blocks, angle, 2), b.dim(columns, 0), count)
    return b.op("Concat", turned, b.op("Slice", columns, count, end, b.const([1])), axis=1)


def _mean_and_root(b: BodyBuilder, moments: str, epsilon: str) -> tuple[str, str]:
    """Mean and sqrt(variance + epsilon) of whole rows, float32 [T,1], from the moments [G,T,2] of their groups.

    With rms the mean square stands for the variance.
    """
    means, squares = (b.op("Gather", moments, b.const([i]), axis=2) for i in range(2))  # [G,T,1]
    mean = b.reduce("ReduceMean", means, 0)
    deviation = means if b.attributes["rms"] else b.op("Sub", means, mean)
    inside = b.op("Div", squares, b.const(MOMENTS_GROUP, np.float32))
    variance = b.reduce("ReduceMean", b.op("Add", inside, b.op("Mul", deviation, deviation)), 0)
    return mean, b.op("Sqrt", b.op("Add", variance, b.attribute(epsilon)))


def _moments(b: BodyBuilder, y: str) -> str:
    """float32 [M,T,2]: mean and sum of squared deviations of each row's groups of columns."""
    group = b.const([MOMENTS_GROUP])
    split = b.reshape(y, b.dim(y, 0), b.op("Div", b.dim(y, 1), group), group)  # [T,M,64]
    # Sums as products: onnxruntime 1.31 gives reductions of no rows their input's shape.
    mean = b.op("MatMul", split, b.const(np.full((MOMENTS_GROUP, 1), 1 / MOMENTS_GROUP), np.float32))
    deviation = b.op("Sub", split, mean)
    squares = b.op("MatMul", b.op("Mul", deviation, deviation), b.const(np.ones((MOMENTS_GROUP, 1)), np.float32))
    return b.op("Transpose", b.op("Concat", mean, squares, axis=-1), perm=[1, 0, 2])


def _activated(b: BodyBuilder, x: str, activation: AttributeValue) -> str:
    """The activation of float32 values; Gelu is an operator from opset 20 on alone."""
    if activation == "relu":
        return b.op("Relu", x)
    if activation == "sigmoid":
        return b.op("Sigmoid", x)
    if activation == "silu":
        return b.op("Mul", x, b.op("Sigmoid", x))
    if activation == "gelu":
        gate = b.op("Erf", b.op("Mul", x, b.const(math.sqrt(0.5), np.float32)))
    elif activation == "gelu_tanh":
        cube = b.op("Mul", b.op("Mul", x, x), b.op("Mul", x, b.const(0.044715, np.float32)))
        gate = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), b.const(math.sqrt(2 / math.pi), np.float32)))
    else:
        return x
    half = b.op("Mul", x, b.const(0.5, np.float32))
    return b.op("Mul", half, b.op("Add", gate, b.const(1.0, np.float32)))


def _pool(b: BodyBuilder) -> None:
    ragged = ragged_from_cu_seqlens(b, b.load_index("cu_seqlens"))
    x = b.load("x")
    some = b.op("Greater", ragged.lens, b.const(0))
    mode = b.attributes["mode"]
    if mode in ("first", "last"):
        token = ragged.starts
        if mode == "last":
            token = b.op("Sub", b.op("Add", ragged.starts, ragged.lens), b.const(1))
        y = b.gather_rows(x, b.op("Where", some, token, b.const(-1)))
    else:
        padded = b.gather_rows(x, grid_token(b, ragged))  # [B,Smax,E]
        if mode == "mean":
            count = b.op("Cast", b.op("Max", ragged.lens, b.const(1)), to=TensorProto.FLOAT)
            y = b.op("Div", b.reduce("ReduceSum", padded, 1), b.unsqueeze(count, 1))
        else:
            hidden = b.op("Where", b.unsqueeze(ragged.mask, 2), padded, b.const(-np.inf, np.float32))
            y = b.where_or_zero(b.unsqueeze(some, 1), b.reduce("ReduceMax", hidden, 1))
    if b.attributes["normalize"]:
        norm = b.op("Sqrt", b.reduce("ReduceSum", b.op("Mul", y, y), -1, keepdims=True))
        y = b.op("Div", y, b.op("Max", norm, b.const(1e-12, np.float32)))
    b.output("y", y)


BODIES: Mapping[str, Callable[[BodyBuilder], None]] = MappingProxyType(
    {
        "PadfreeIndex": _index,
        "PadfreePack": _pack,
        "PadfreeUnpack": _unpack,
        "PadfreeSchedule": _schedule,
        "PadfreeEmbedding": _embedding,
        "PadfreeAttention": attention,
        "PadfreeRotary": _rotary,
        "PadfreeLayerNorm": _layer_norm,
        "PadfreeLinear": _linear,
        "PadfreePool": _pool,
    }
)
