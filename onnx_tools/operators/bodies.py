# SPDX-License-Identifier: Apache-2.0
"""What each operator computes, in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

from .attention_body import attention
from .body_builder import BodyBuilder
from .linear_body import linear, linear_fp8, linear_int8, output_moments, rotated_pairs
from .ragged_tokens import RaggedTokens, grid_token, is_live, pad_index, prefixes, ragged_from_cu_seqlens, token_slot


def _index(b: BodyBuilder) -> None:
    is_token = b.op("Cast", b.op("Not", b.op("Equal", "mask", b.const(0, np.int32))), to=TensorProto.INT64)
    flat = b.reshape(is_token, -1)
    b.output_index("token_index", b.op("Squeeze", b.op("NonZero", flat), [0]))
    b.output_index("seq_lens", b.along("ReduceSum", is_token, 1, keepdims=0))
    b.output_index("num_tokens", b.along("ReduceSum", flat, 0, keepdims=0))


def _pack(b: BodyBuilder) -> None:
    slots = b.op("Mul", b.dim("x", 0), b.dim("x", 1))
    flat = b.reshape_to("x", slots, b.dims_from("x", 2))
    b.output_as_is("packed", b.gather_rows(flat, b.load_index("token_index")))


def _unpack(b: BodyBuilder) -> None:
    batch, length = b.op("Shape", "seq_lens"), b.dim("extent", -1)
    slots = b.op("Mul", batch, length)
    index = b.load_index("token_index")
    inside = b.op("And", b.op("GreaterOrEqual", index, 0), b.op("Less", index, slots))
    # One extra slot at the end takes tokens that belong in no slot.
    nowhere = b.fill(b.op("Add", slots, [1]), -1)
    target = b.op("Where", inside, index, slots)
    source = b.op("ScatterElements", nowhere, target, b.range(b.op("Shape", "token_index")), axis=0)
    rows = b.gather_rows("packed", b.op("Slice", source, [0], slots))
    b.output_as_is("x", b.reshape_to(rows, batch, length, b.dims_from("packed", 1)))


def _offsets(b: BodyBuilder, tokens: str) -> str:
    """int64 [B+1]: cumulative sums of seq_lens, none above the number of tokens."""
    lens = b.op("Max", b.load_index("seq_lens"), [0])
    sums = b.op("CumSum", lens, 0)
    # Not Min: onnxruntime 1.31 picks the wrong operand for int64 beyond 2^31.
    sums = b.op("Where", b.op("Less", sums, tokens), sums, tokens)
    return b.op("Concat", [0], sums, axis=0)


def _no_tasks(b: BodyBuilder) -> None:
    b.output_index("tasks", b.fill(b.integers(1, 4), 0))


def _schedule(b: BodyBuilder) -> None:
    tokens = b.op("Shape", "tokens")
    cu = _offsets(b, tokens)
    b.output_index("cu_seqlens", cu)
    if b.attributes["has_extent"] or b.attributes["has_positions"]:
        ragged = ragged_from_cu_seqlens(b, cu)
        sequence, slot_in_sequence = token_slot(b, ragged)
        if b.attributes["has_extent"]:
            length = b.op("Shape", "extent")
            slot = b.op("Add", b.op("Mul", sequence, length), slot_in_sequence)
            slot = b.op("Where", b.op("Less", slot_in_sequence, length), slot, -1)
            b.output_index("token_index", pad_index(b, slot, tokens, -1))
        if b.attributes["has_positions"]:
            position = slot_in_sequence
            if b.attributes["has_prefix"]:
                position = b.op("Add", position, b.op("Gather", prefixes(b, ragged).lens, sequence, axis=0))
            b.output_index("positions", pad_index(b, position, tokens, 0))
    if b.attributes["has_tasks"]:
        _no_tasks(b)


def _table_rows(b: BodyBuilder, table: str, ids: str) -> str:
    """float32 [T,E]: rows of a table, zeros for ids out of its range (without a copy of the table)."""
    last = b.op("Sub", b.dim(table, 0), [1])
    near = b.op("Max", b.op("Min", ids, last), [0])
    rows = b.load(b.op("Gather", table, near, axis=0))
    return b.where_or_zero(b.unsqueeze(b.op("Equal", near, ids), 1), rows)


def _norm(b: BodyBuilder, rows: str, *, rms: bool) -> str:
    """Rows normed with gamma, and with beta if the node has one."""
    return b.norm(rows, b.load("gamma"), b.load("beta") if b.attributes["has_beta"] else None, rms=rms)


def _embedding(b: BodyBuilder) -> None:
    tokens = b.op("Shape", "ids")
    cu = _offsets(b, tokens) if b.attributes["schedules"] else b.load_index("cu_seqlens")
    ragged = ragged_from_cu_seqlens(b, cu)
    total = _table_rows(b, "word_table", b.load_index("ids"))
    if b.attributes["has_position_table"]:
        if b.attributes["has_positions"]:
            positions = b.load_index("positions")
        else:
            token_position = pad_index(b, token_slot(b, ragged)[1], tokens, 0)
            positions = b.op("Add", token_position, b.attribute("position_offset"))
        total = b.op("Add", total, _table_rows(b, "position_table", positions))
    if b.attributes["has_token_types"]:
        total = b.op("Add", total, _table_rows(b, "type_table", b.load_index("token_types")))
    y = _norm(b, total, rms=False)
    b.output_results(b.where_or_zero(is_live(b, ragged, tokens), y))
    if b.attributes["schedules"]:
        b.output_index("cu_seqlens", cu)
    if b.attributes["has_tasks"]:
        _no_tasks(b)


def _token_rows(b: BodyBuilder) -> None:
    y = b.op("Mul", _table_rows(b, "table", b.load_index("ids")), b.attribute("scale"))
    b.output("y", y)
    output_moments(b, y)
    if b.attributes["schedules"]:
        tokens = b.op("Shape", "ids")
        cu = _offsets(b, tokens)
        b.output_index("cu_seqlens", cu)
        if b.attributes["has_positions"]:
            position = token_slot(b, ragged_from_cu_seqlens(b, cu))[1]
            b.output_index("positions", pad_index(b, position, tokens, 0))
    if b.attributes["has_tasks"]:
        _no_tasks(b)


def _rotary(b: BodyBuilder) -> None:
    heads, size = b.attribute_vector("num_heads"), b.attribute_vector("head_size")
    width, end = b.op("Mul", heads, size), b.integers(np.iinfo(np.int64).max)
    columns = b.load(b.op("Slice", "x", [0], width, [1]))
    rest = b.load(b.op("Slice", "x", width, end, [1]))
    b.output("y", b.op("Concat", _rotated_heads(b, columns, b.dim("x", 0), heads, size), rest, axis=1))


def _rotated_heads(b: BodyBuilder, columns: str, tokens: str, heads: str, size: str) -> str:
    """float32 [T,H*D] of numbers in float32, [T,H*D] or [T,H,D]: split as [T,H,2,P] or [T,H,P,2], rotated."""
    two = b.integers(2)
    pairs, is_half = b.op("Div", size, two), b.attributes["pairing"] == "half"
    split = b.reshape_to(columns, tokens, heads, *((two, pairs) if is_half else (pairs, two)))
    angle = b.op(
        "Mul", b.unsqueeze(b.op("Cast", "positions", to=TensorProto.FLOAT), 1, 2), b.unsqueeze("frequencies", 1)
    )
    return b.reshape_to(rotated_pairs(b, split, angle, 2 if is_half else 3), tokens, b.op("Mul", heads, size))


def _qk_norm_rotary(b: BodyBuilder) -> None:
    tokens, size = b.dim("qkv", 0), b.attribute_vector("head_size")
    counts = [b.attribute_vector(name) for name in ("num_heads", "num_kv_heads")]
    q, both = counts[0], b.op("Add", *counts)
    normed = []
    for name, first, end, count in (("q_gamma", b.integers(0), q, counts[0]), ("k_gamma", q, both, counts[1])):
        columns = b.op("Slice", "qkv", b.op("Mul", first, size), b.op("Mul", end, size), [1])
        normed.append(b.norm(b.reshape_to(b.load(columns), tokens, count, size), b.load(name), None, rms=True))
    b.output("qk", _rotated_heads(b, b.op("Concat", *normed, axis=1), tokens, both, size))


def _layer_norm(b: BodyBuilder) -> None:
    total = b.load("x")
    for name in ("bias", "residual"):
        if b.attributes[f"has_{name}"]:
            total = b.op("Add", total, b.load(name))
    y = _norm(b, total, rms=b.attributes["rms"] == 1)
    b.output_results(y)
    if b.attributes["has_sum"]:
        b.output("sum", total)
    if b.attributes["has_first"]:
        ragged = ragged_from_cu_seqlens(b, b.load_index("cu_seqlens"))
        first = _rows_of_sequences(b, y, ragged, ragged.starts)
        if b.attributes["has_pooler"]:
            matmul = b.op("MatMul", first, b.op("Transpose", b.load("pooler_weight"), perm=[1, 0]))
            b.output_as_is("pooled", b.op("Tanh", b.op("Add", matmul, b.load("pooler_bias"))))
        else:
            b.output("y_first", first)


def _post_norm(b: BodyBuilder) -> None:
    y = b.op("Add", b.load("residual"), b.norm(b.load("x"), b.load("gamma"), None, rms=True))
    b.output("y", y)
    output_moments(b, y)


def _rows_of_sequences(b: BodyBuilder, x: str, ragged: RaggedTokens, token: str) -> str:
    """[B,E]: a token's row for each sequence, zeros for an empty one."""
    some = b.op("Greater", ragged.lens, 0)
    return b.gather_rows(x, b.op("Where", some, token, -1))


def _pool(b: BodyBuilder) -> None:
    ragged = ragged_from_cu_seqlens(b, b.load_index("cu_seqlens"))
    x = b.load("x")
    if b.attributes["has_norm"]:
        x = _norm(b, x, rms=b.attributes["rms"] == 1)
    mode = b.attributes["mode"]
    if mode == "each":
        some = b.op("Greater", ragged.lens, 0)
        y = b.where_or_zero(b.unsqueeze(some, 1), x)
    elif mode in ("first", "last"):
        token = ragged.starts
        if mode == "last":
            token = b.op("Sub", b.op("Add", ragged.starts, ragged.lens), 1)
        y = _rows_of_sequences(b, x, ragged, token)
    else:
        padded = b.gather_rows(x, grid_token(b, ragged))  # [B,Smax,E]
        if mode == "mean":
            count = b.op("Cast", b.op("Max", ragged.lens, 1), to=TensorProto.FLOAT)
            y = b.op("Div", b.along("ReduceSum", padded, 1, keepdims=0), b.unsqueeze(count, 1))
        else:
            hidden = b.op("Where", b.unsqueeze(ragged.mask, 2), padded, b.const(-np.inf, np.float32))
            some = b.op("Greater", ragged.lens, 0)
            y = b.where_or_zero(b.unsqueeze(some, 1), b.along("ReduceMax", hidden, 1, keepdims=0))
    if b.attributes["normalize"]:
        norm = b.op("Sqrt", b.along("ReduceSum", b.op("Mul", y, y), -1, keepdims=1))
        y = b.op("Div", y, b.op("Max", norm, 1e-12))
    b.output_results(y)


BODIES: Mapping[str, Callable[[BodyBuilder], None]] = MappingProxyType(
    {
        "PadfreeIndex": _index,
        "PadfreePack": _pack,
        "PadfreeUnpack": _unpack,
        "PadfreeSchedule": _schedule,
        "PadfreeEmbedding": _embedding,
        "PadfreeTokenRows": _token_rows,
        "PadfreeAttention": attention,
        "PadfreeQkNormRotary": _qk_norm_rotary,
        "PadfreeRotary": _rotary,
        "PadfreeLayerNorm": _layer_norm,
        "PadfreePostNorm": _post_norm,
        "PadfreeLinear": linear,
        "PadfreeLinearFp8": linear_fp8,
        "PadfreeLinearInt8": linear_int8,
        "PadfreePool": _pool,
    }
)
