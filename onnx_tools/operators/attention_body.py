# SPDX-License-Identifier: Apache-2.0
"""What PadfreeAttention computes, in standard ONNX operators."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from .body_builder import BodyBuilder
from .ragged_tokens import RaggedTokens, bool_to_bias, grid_token, prefixes, ragged_from_cu_seqlens


def attention(b: BodyBuilder) -> None:
    """Writes the body: Smax * Smax scores per head and sequence, and no tensor of size T * T."""
    heads, kv_heads, size = (b.attribute_vector(name) for name in ("num_heads", "num_kv_heads", "head_size"))
    width = b.op("Mul", heads, size)
    ragged = ragged_from_cu_seqlens(b, b.load_index("cu_seqlens"))
    batch = b.op("Shape", ragged.lens)
    tokens, q, k, v = _query_key_value(b, ragged, heads, kv_heads, size)

    ratio = b.op("Div", heads, kv_heads)  # query heads that read the same keys; they get an axis of their own
    q = b.op("Mul", b.op("Transpose", q, perm=[0, 2, 1, 3]), b.attribute("scale"))
    q = b.reshape_to(q, batch, kv_heads, ratio, ragged.smax, size)
    keys = _keys(b, ragged, k, v)
    k = b.unsqueeze(b.op("Transpose", keys.k, perm=[0, 2, 3, 1]), 2)  # [B,KVH,1,D,keys]
    v = b.unsqueeze(b.op("Transpose", keys.v, perm=[0, 2, 1, 3]), 2)
    scores = b.op("MatMul", q, k)  # [B,KVH,H/KVH,Smax,keys]
    if b.attributes["bias"] == "disentangled":
        scores = _add_disentangled(b, scores, q, k, keys.distance)
    elif b.attributes["bias"] != "none":
        by_head = _distance_bias(b, keys.distance)
        if b.attributes["has_prefix"]:
            sizes = (batch, kv_heads, ratio, ragged.smax, b.dim(keys.k, 1))
            by_head = b.reshape_to(b.op("Transpose", by_head, perm=[1, 0, 2, 3]), *sizes)
        else:
            by_head = b.reshape_to(by_head, kv_heads, ratio, ragged.smax, ragged.smax)
        scores = b.op("Add", scores, by_head)
    near = _in_window(b, keys.distance)
    near = near if b.attributes["has_prefix"] else b.unsqueeze(near, 0)
    visible = b.op("And", b.unsqueeze(keys.mask, 1), near)  # [B,Smax,keys]
    scores = b.op("Add", scores, b.unsqueeze(bool_to_bias(b, visible), 1, 2))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    rows = b.reshape_to(b.op("Transpose", context, perm=[0, 3, 1, 2, 4]), b.op("Mul", batch, ragged.smax), width)

    flat_mask = b.reshape(ragged.mask, -1)
    live = b.op("Squeeze", b.op("NonZero", flat_mask), [0])
    missing = b.op("Concat", b.op("Sub", tokens, ragged.total), width, axis=0)
    filler = b.op("ConstantOfShape", missing)
    y = b.op("Concat", b.op("Gather", rows, live, axis=0), filler, axis=0)
    if b.attributes["quantized"]:
        b.output_e4m3("y", y, b.attribute("y_scale"))
    else:
        b.output("y", y)


@dataclass(frozen=True)
class _Keys:
    """The names of the values that describe the keys of each sequence's queries: its own, after those of its prefix."""

    k: str  # float32 [B,keys,KVH,D]
    v: str
    mask: str  # bool [B,keys], true where a key is
    distance: str  # int64 [Smax,keys], or with prefixes [B,Smax,keys]: key - query


def _keys(b: BodyBuilder, ragged: RaggedTokens, k: str, v: str) -> _Keys:
    positions = b.range(ragged.smax)
    own = b.op("Sub", b.unsqueeze(positions, 0), b.unsqueeze(positions, 1))
    if not b.attributes["has_prefix"]:
        return _Keys(k, v, ragged.mask, own)
    prefix, both = prefixes(b, ragged), [b.op("Shape", ragged.lens), ragged.smax, ragged.smax]
    before = b.op("Sub", own, b.unsqueeze(prefix.lens, 1, 2))
    k, v = (b.op("Concat", b.op("Gather", part, prefix.parents, axis=0), part, axis=1) for part in (k, v))
    return _Keys(
        k,
        v,
        b.op("Concat", b.op("Less", b.unsqueeze(positions, 0), b.unsqueeze(prefix.lens, 1)), ragged.mask, axis=1),
        b.op("Concat", before, b.op("Expand", own, b.op("Concat", *both, axis=0)), axis=2),
    )


def _query_key_value(
    b: BodyBuilder, ragged: RaggedTokens, heads: str, kv_heads: str, size: str
) -> tuple[str, str, str, str]:
    """T as int64 [1]; q [B,Smax,H,D], k and v [B,Smax,KVH,D] with their biases."""
    grid, batch = grid_token(b, ragged), b.op("Shape", ragged.lens)
    zero, firsts = b.integers(0), b.op("Add", heads, kv_heads)
    every = b.op("Add", firsts, kv_heads)
    bounds = ((zero, heads), (heads, firsts), (firsts, every))  # where q, k and v lie among all heads
    if b.attributes["qkv_layout"] == "separate":
        parts = [b.load(name) for name in ("q", "k", "v")]
        if b.attributes["has_qkv_bias"]:
            bias = b.load("qkv_bias")
            for i, (first, end) in enumerate(bounds):
                own = b.op("Slice", bias, b.op("Mul", first, size), b.op("Mul", end, size))
                parts[i] = b.op("Add", parts[i], own)
        counts = (heads, kv_heads, kv_heads)
        split = [
            b.reshape_to(b.gather_rows(part, grid), batch, ragged.smax, count, size)
            for part, count in zip(parts, counts, strict=True)
        ]
        return b.dim("q", 0), split[0], split[1], split[2]
    qkv = b.load("qkv")
    if b.attributes["qkv_layout"] == "2HD":
        v = b.op("Slice", qkv, b.op("Mul", firsts, size), b.op("Mul", every, size), [1])
        qkv = b.op("Concat", b.load("qk"), v, axis=1)
    if b.attributes["has_qkv_bias"]:
        qkv = b.op("Add", qkv, b.load("qkv_bias"))
    rows = b.gather_rows(qkv, grid)
    if b.attributes["qkv_layout"] == "H3D":
        padded = b.reshape_to(rows, batch, ragged.smax, heads, b.integers(3), size)
        split = [b.op("Gather", padded, i, axis=3) for i in range(3)]
    else:
        padded = b.reshape_to(rows, batch, ragged.smax, every, size)
        split = [b.op("Slice", padded, first, end, [2]) for first, end in bounds]
    return b.dim("qkv", 0), split[0], split[1], split[2]


def _in_window(b: BodyBuilder, distance: str) -> str:
    """Whether the query sees the key, as bool in the shape of `distance` (key - query)."""
    sides = []
    for name, distance_back in (("window_left", b.op("Neg", distance)), ("window_right", distance)):
        limit = b.attribute(name)
        near = b.op("Not", b.op("Greater", distance_back, limit))
        sides.append(b.op("Or", near, b.op("Less", limit, 0)))
    return b.op("And", *sides)


def _distance_bias(b: BodyBuilder, distance: str) -> str:
    """What is added to the scores at these distances (key - query): float32 [H,Smax,keys], [H,B,Smax,keys]."""
    if b.attributes["bias"] == "slope":
        away = b.op("Cast", b.op("Abs", distance), to=TensorProto.FLOAT)
        axes = (1, 2, 3) if b.attributes["has_prefix"] else (1, 2)
        return b.op("Mul", b.op("Neg", b.unsqueeze("slopes", *axes)), away)
    return b.op("Gather", "distance_bias", _table_index(b, distance), axis=1)


def _table_index(b: BodyBuilder, distance: str) -> str:
    """Which of the 2R + 1 entries of a table belongs to each distance."""
    farthest = b.attribute("bias_range")
    near = b.op("Max", b.op("Min", distance, farthest), b.op("Neg", farthest))
    return b.op("Add", near, farthest)


def _add_disentangled(b: BodyBuilder, scores: str, q: str, k: str, distance: str) -> str:
    """The scores [B,H,1,Smax,Smax] plus the dot products of q and k with rows of the tables.

    q is [B,H,1,Smax,D] and scaled; k is [B,H,1,D,Smax] and unscaled. Batch and positions are one axis in the dot
    products: onnxruntime's MatMul does not broadcast a table over an empty batch.
    """
    heads, size = (b.attribute_vector(name) for name in ("num_heads", "head_size"))
    index = _table_index(b, distance)
    batch, length = b.dim(scores, 0), b.dim(scores, -1)

    def gather(rows: str, table: str, index: str, perm: list[int]) -> str:
        """[B,H,1,Smax,Smax] from rows [H,1,B,Smax,D]; perm is applied to [H,B,Smax,Smax], ordered like `index`."""
        by_head = b.op("Transpose", b.reshape_to(b.load(table), b.dim(table, 0), heads, size), perm=[1, 2, 0])
        dot_products = b.op("MatMul", b.reshape_to(rows, heads, b.op("Mul", batch, length), size), by_head)
        dot_products = b.reshape_to(dot_products, heads, batch, length, b.dim(table, 0))
        everywhere = b.op("Expand", index, b.op("Concat", heads, batch, length, length, axis=0))
        near = b.op("GatherElements", dot_products, everywhere, axis=-1)
        return b.unsqueeze(b.op("Transpose", near, perm=perm), 2)

    if b.attributes["has_k_position"]:
        rows = b.op("Transpose", q, perm=[1, 2, 0, 3, 4])
        scores = b.op("Add", scores, gather(rows, "k_position", index, [1, 0, 2, 3]))
    if b.attributes["has_q_position"]:
        rows = b.op("Transpose", b.op("Mul", k, b.attribute("scale")), perm=[1, 2, 0, 4, 3])
        of_keys = b.op("Transpose", index, perm=[1, 0])
        scores = b.op("Add", scores, gather(rows, "q_position", of_keys, [1, 0, 3, 2]))
    return scores
