# SPDX-License-Identifier: Apache-2.0
"""The truth: every padfree operator in plain numpy, sequence by sequence, computed in float64.

Inputs are numpy arrays; activations may have any float type and come back as float64 (Pack and Unpack keep the type).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]


def f64(x: npt.ArrayLike) -> Floats:
    """As float64."""
    return np.asarray(x).astype(np.float64)


def index(mask: Array) -> tuple[Array, Array, Array]:
    """token_index, seq_lens and num_tokens of a mask [B,S]."""
    batch, length = mask.shape
    slots = [b * length + s for b in range(batch) for s in range(length) if mask[b, s] != 0]
    lens = [int(np.count_nonzero(mask[b])) for b in range(batch)]
    return np.array(slots, np.int32), np.array(lens, np.int32), np.array(len(slots), np.int32)


def pack(x: Array, token_index: Array) -> Array:
    """The slots of x [B,S,...] that token_index [T] names, as [T,...]; zeros for indices out of range."""
    flat = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    result = np.zeros((len(token_index), *x.shape[2:]), x.dtype)
    for token, slot in enumerate(token_index):
        if 0 <= slot < len(flat):
            result[token] = flat[slot]
    return result


def unpack(packed: Array, token_index: Array, seq_lens: Array, extent: Array) -> Array:
    """The tokens of packed [T,...] in their slots [B,S,...], zeros elsewhere."""
    batch, length = len(seq_lens), extent.shape[-1]
    flat = np.zeros((batch * length, *packed.shape[1:]), packed.dtype)
    for token, slot in enumerate(token_index):
        if 0 <= slot < len(flat):
            flat[slot] = packed[token]
    return flat.reshape(batch, length, *packed.shape[1:])


def positions(cu_seqlens: Array, num_tokens: int, prefix: Array | None = None) -> Array:
    """Every token's position [T], which continues from the length of the prefix; 0 for filler."""
    result = np.zeros(num_tokens, np.int32)
    for number, (start, end) in enumerate(itertools.pairwise(cu_seqlens)):
        result[start:end] = np.arange(end - start) + len(tokens_before(number, cu_seqlens, prefix))
    return result


def schedule(seq_lens: Array, num_tokens: int, padded_length: int | None = None) -> tuple[Array, Array | None]:
    """cu_seqlens [B+1] and, with a padded length, token_index [T]."""
    cu = [0]
    for length in seq_lens:
        cu.append(min(cu[-1] + max(int(length), 0), num_tokens))
    if padded_length is None:
        return np.array(cu, np.int32), None
    slots = np.full(num_tokens, -1, np.int32)
    for b in range(len(seq_lens)):
        for s in range(min(cu[b + 1] - cu[b], padded_length)):
            slots[cu[b] + s] = b * padded_length + s
    return np.array(cu, np.int32), slots


def _row(table: Array, row: int) -> Floats:
    return f64(table[row]) if 0 <= row < len(table) else np.zeros(table.shape[1])


def normalise(x: Floats, gamma: Array, beta: Array | None, epsilon: float, rms: bool = False) -> Floats:
    """Layer norm or RMS norm over the last axis."""
    centred = x if rms else x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * f64(gamma)
    return y if beta is None else y + f64(beta)


def embedding(
    ids: Array,
    cu_seqlens: Array,
    word_table: Array,
    gamma: Array,
    beta: Array | None = None,
    *,
    epsilon: float,
    token_types: Array | None = None,
    type_table: Array | None = None,
    positions: Array | None = None,
    position_table: Array | None = None,
    position_offset: int = 0,
) -> Floats:
    """[T,E]: layer norm of the summed embeddings; zeros for filler tokens."""
    y = np.zeros((len(ids), word_table.shape[1]))
    for start, end in itertools.pairwise(cu_seqlens):
        for token in range(start, end):
            total = _row(word_table, int(ids[token]))
            if position_table is not None:
                position = token - start + position_offset if positions is None else positions[token]
                total = total + _row(position_table, int(position))
            if token_types is not None:
                assert type_table is not None
                total = total + _row(type_table, int(token_types[token]))
            y[token] = normalise(total, gamma, beta, epsilon)
    return y


def split_qkv(
    qkv: Array, num_heads: int, head_size: int, qkv_layout: str, num_kv_heads: int = 0
) -> tuple[Array, Array, Array]:
    """Splits qkv ("3HD" or "H3D") into q [...,H*D], k and v [...,KVH*D]; num_kv_heads 0: as many as num_heads."""
    lead = qkv.shape[:-1]
    width, kv_width = num_heads * head_size, (num_kv_heads or num_heads) * head_size
    if qkv_layout == "3HD":
        q, k, v = np.split(qkv, [width, width + kv_width], axis=-1)
    else:
        q, k, v = (qkv.reshape(*lead, num_heads, 3, head_size)[..., i, :].reshape(*lead, width) for i in range(3))
    return q, k, v


def attention(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens: Array,
    *,
    num_heads: int,
    head_size: int,
    scale: float,
    window: tuple[int, int] = (-1, -1),
    slopes: Array | None = None,
    distance_bias: Array | None = None,
    k_position: Array | None = None,
    q_position: Array | None = None,
    prefix: Array | None = None,
) -> Floats:
    """Attention of q [T,H*D], k and v [T,KVH*D], as [T,H*D]; zeros for filler tokens.

    window: how many keys a query sees before and after its own, -1: all. slopes [H], distance_bias [H,2R+1],
    k_position and q_position [2R+1,H*D] and prefix [B] are those of the operator's description.
    """
    y = np.zeros(q.shape)
    ratio = q.shape[1] // k.shape[1]
    for number, (start, end) in enumerate(itertools.pairwise(cu_seqlens)):
        if start == end:
            continue
        before = tokens_before(number, cu_seqlens, prefix)
        tokens = np.concatenate([before, np.arange(start, end)])
        distance = np.arange(len(tokens)) - np.arange(len(before), len(tokens))[:, None]
        hidden = np.zeros(distance.shape, bool)
        for limit, side in zip(window, (-distance, distance), strict=True):
            hidden |= (limit >= 0) & (side > limit)
        for head in range(num_heads):
            columns, shared = (slice(i * head_size, (i + 1) * head_size) for i in (head, head // ratio))
            rows, keys = f64(q[start:end, columns]), f64(k[tokens, shared])
            scores = rows @ keys.T * scale
            if slopes is not None:
                scores -= f64(slopes[head]) * abs(distance)
            if distance_bias is not None:
                reach = distance_bias.shape[1] // 2
                scores += f64(distance_bias[head])[np.clip(distance, -reach, reach) + reach]
            for table, side, axis in ((k_position, rows, 1), (q_position, keys, 0)):
                if table is not None:
                    reach = len(table) // 2
                    index = np.clip(distance, -reach, reach) + reach
                    products = side @ f64(table[:, columns]).T * scale  # [S,2R+1]
                    scores += np.take_along_axis(products if axis else products.T, index, axis)
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            y[start:end, columns] = weights / weights.sum(-1, keepdims=True) @ f64(v[tokens, shared])
    return y


def tokens_before(number: int, cu_seqlens: Array, prefix: Array | None) -> npt.NDArray[np.int64]:
    """The tokens that come before those of a sequence: all of the one that is its prefix, if there is one."""
    parent = -1 if prefix is None or len(prefix) != len(cu_seqlens) - 1 else int(prefix[number])
    if not 0 <= parent < len(cu_seqlens) - 1 or parent == number:
        return np.zeros(0, np.int64)
    return np.arange(cu_seqlens[parent], cu_seqlens[parent + 1])


def _angles(positions: Array, frequencies: Array) -> Floats:
    """Position times frequency [T,P], rounded to float32."""
    return f64(positions.astype(np.float32)[:, None] * frequencies.astype(np.float32))


def _rotate(x: Floats, y: Floats, angles: Floats) -> tuple[Floats, Floats]:
    cosine, sine = np.cos(angles), np.sin(angles)
    return x * cosine - y * sine, y * cosine + x * sine


def rotary(x: Array, positions: Array, frequencies: Array, *, head_size: int, num_heads: int, pairing: str) -> Floats:
    """x [T,W] with the pairs of its first heads rotated by positions [T] * frequencies [1,D/2]."""
    y = f64(x).copy()
    angles = _angles(positions, frequencies[0])
    for head in range(num_heads):
        columns = np.arange(head * head_size, (head + 1) * head_size)
        first, second = columns.reshape(2, -1) if pairing == "half" else columns.reshape(-1, 2).T
        y[:, first], y[:, second] = _rotate(f64(x[:, first]), f64(x[:, second]), angles)
    return y


def qk_norm_rotary(
    qkv: Array,
    q_gamma: Array,
    k_gamma: Array,
    positions: Array,
    frequencies: Array,
    *,
    epsilon: float,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    pairing: str,
) -> Floats:
    """[T,(H+KVH)*D]: the RMS norm of every head of Q and K, the first columns of qkv, rotated."""
    gammas = [q_gamma] * num_heads + [k_gamma] * num_kv_heads
    columns = f64(qkv[:, : len(gammas) * head_size]).reshape(len(qkv), len(gammas), head_size)
    normed = [normalise(columns[:, i], gamma, None, epsilon, True) for i, gamma in enumerate(gammas)]
    return rotary(
        np.concatenate(normed, 1), positions, frequencies, head_size=head_size, num_heads=len(gammas), pairing=pairing
    )


def layer_norm(
    x: Array,
    gamma: Array,
    beta: Array | None = None,
    *,
    epsilon: float,
    bias: Array | None = None,
    residual: Array | None = None,
    rms: bool = False,
) -> tuple[Floats, Floats]:
    """The norm of x + bias + residual, and the sum itself; both [...,E]."""
    total = f64(x)
    if bias is not None:
        total = total + f64(bias)
    if residual is not None:
        total = total + f64(residual)
    return normalise(total, gamma, beta, epsilon, rms), total


def post_norm(x: Array, residual: Array, gamma: Array, *, epsilon: float) -> Floats:
    """The residual plus the RMS norm of x; [T,E]."""
    return f64(residual) + normalise(f64(x), gamma, None, epsilon, True)


def token_rows(ids: Array, table: Array, scale: float) -> Floats:
    """Rows of a table times a number, zeros for ids outside of it; [T,N]."""
    inside = (ids >= 0) & (ids < len(table))
    return np.where(inside[:, None], f64(table)[np.where(inside, ids, 0)] * scale, 0.0)


def moments(y: Array, group: int = 64) -> Floats:
    """Mean and sum of squared deviations of every 64 columns of y [T,N], as [N/64,T,2]."""
    split = f64(y).reshape(len(y), y.shape[1] // group, group)
    mean = split.mean(-1)
    return np.stack([mean, ((split - mean[..., None]) ** 2).sum(-1)], -1).transpose(1, 0, 2)


def statistics(moments: Array, epsilon: float, rms: bool = False, group: int = 64) -> tuple[Floats, Floats]:
    """Mean and 1 / sqrt(variance + epsilon) of whole rows, each [T,1], from moments [G,T,2]; rms: about a mean of 0."""
    means, squares = f64(moments[..., 0]), f64(moments[..., 1])
    mean = np.zeros(means.shape[1]) if rms else means.mean(0)
    variance = (squares + group * (means - mean) ** 2).sum(0) / (group * len(means))
    return mean[:, None], 1 / np.sqrt(variance + epsilon)[:, None]


def linear(
    x: Array,
    weight: Array,
    activation: str,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    x_moments: Array | None = None,
    residual_moments: Array | None = None,
    residual_scale: Array | None = None,
    positions: Array | None = None,
    frequencies: Array | None = None,
    head_scale: Array | None = None,
    head_size: int = 128,
    x_epsilon: float = 0.0,
    residual_epsilon: float = 0.0,
    gated: bool = False,
    rms: bool = False,
) -> Floats:
    """activation(x weight + bias) + residual, [T,N]; x and the residual may be rows before a layer norm.

    Gated: activation(u) * v, [T,N/2]. With frequencies: the first 2 * len(frequencies) columns are rotated in pairs,
    with head_scale after an RMS norm of every head_size.
    """
    total = f64(x) @ f64(weight)
    if x_moments is not None:
        _, scale = statistics(x_moments, x_epsilon, rms)
        total = total * scale
    if bias is not None:
        total = total + f64(bias)
    if head_scale is not None:
        heads = total[:, : len(head_scale)].reshape(len(total), len(head_scale) // head_size, head_size)
        normed = normalise(heads, np.ones(head_size), None, residual_epsilon, True)
        total[:, : len(head_scale)] = normed.reshape(len(total), len(head_scale)) * f64(head_scale)
    if positions is not None:
        assert frequencies is not None
        count = len(frequencies) // 8
        blocks = total[:, : 16 * count].reshape(len(total), count, 2, 8)
        angles = _angles(positions, frequencies).reshape(len(total), count, 8)
        rotated = np.stack(_rotate(blocks[:, :, 0], blocks[:, :, 1], angles), 2)
        total[:, : 16 * count] = rotated.reshape(len(total), 16 * count)
    if gated:
        blocks = total.reshape(len(total), total.shape[1] // 16, 2, 8)
        u, v = (blocks[:, :, i].reshape(len(total), total.shape[1] // 2) for i in range(2))
        return _activate(u, activation) * v
    total = _activate(total, activation)
    if residual is None:
        return total
    if residual_moments is None:
        return total + f64(residual)
    assert residual_scale is not None
    mean, scale = statistics(residual_moments, residual_epsilon, rms)
    return total + (f64(residual) - mean) * scale * f64(residual_scale)


def _activate(total: Floats, activation: str) -> Floats:
    if activation == "gelu":
        total = total * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(total / math.sqrt(2)))
    elif activation == "gelu_tanh":
        total = total * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (total + 0.044715 * total**3)))
    elif activation == "relu":
        total = np.maximum(total, 0)
    elif activation == "silu":
        total = total / (1 + np.exp(-total))
    elif activation == "sigmoid":
        total = 1 / (1 + np.exp(-total))
    return total


def pool(x: Array, cu_seqlens: Array, mode: str, normalize: bool = False) -> Floats:
    """One row per sequence, [B,E]; zeros for empty ones."""
    y = np.zeros((len(cu_seqlens) - 1, x.shape[1]))
    for b, (start, end) in enumerate(itertools.pairwise(cu_seqlens)):
        rows = f64(x[start:end] if mode != "each" else x[b : b + int(start < end)])
        if len(rows) == 0:
            continue
        y[b] = {"first": rows[0], "last": rows[-1], "mean": rows.mean(0), "max": rows.max(0), "each": rows[0]}[mode]
        if normalize:
            y[b] /= max(float(np.sqrt((y[b] ** 2).sum())), 1e-12)
    return y
