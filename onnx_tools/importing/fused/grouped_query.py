# SPDX-License-Identifier: Apache-2.0
"""GroupQueryAttention without a past, as in encoders made from causal decoders: every query sees the keys up to it.

Sequences are right-padded, and their lengths minus one tell what is padding (`seqlens_k`). Where keys of the past are
inputs, the node is that of a decoder, which generates token by token.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ...analysis import made_by
from .attention import attend, causal, within_lengths
from .expansion import Expansion, NotImportable
from .rotary import rotate

_LOWEST = np.finfo(np.float32).min
_KEYS, _VALUES = 3, 4  # of the past
_LENGTHS, _COSINES, _SINES, _POSITIONS, _BIAS = 5, 7, 8, 9, 10


def group_query_attention(e: Expansion) -> gs.Tensor:
    """Q [B,S,H*D] with K and V [B,S,G*D] of fewer heads, or all of them in one tensor."""
    _check(e)
    heads, groups = e.integer("num_heads"), e.integer("kv_num_heads")
    if heads <= 0 or groups <= 0 or heads % groups:
        raise NotImportable(f"{heads} heads are no multiple of {groups} heads of keys")
    q, k, v = _parts(e, heads, groups)
    size = e.width(q, "query") // heads
    if e.integer("do_rotary"):
        tables, own_positions = (e.input(_COSINES, "cosines"), e.input(_SINES, "sines")), e.optional_input(_POSITIONS)
        is_interleaved = bool(e.integer("rotary_interleaved"))
        of_parts = (e.reshape(e.slots(part, 1), 1, -1) if own_positions is None else own_positions for part in (q, k))
        q, k = (
            rotate(e, part, size, tables, positions, interleaved=is_interleaved)
            for part, positions in zip((q, k), of_parts, strict=True)
        )
    group_of_head = e.constant(np.repeat(np.arange(groups), heads // groups), np.int64)
    k, v = (e.op("Gather", e.reshape(part, 0, 0, groups, size), group_of_head, axis=2) for part in (k, v))
    parts = [e.reshape(q, 0, 0, heads, size), k, v]
    scale = e.number("scale", 0.0) or 1.0 / math.sqrt(size)
    return attend(e, parts, scale, heads * size, e.optional_input(_BIAS), _padding(e, k), causal(e, k, k))


def _check(e: Expansion) -> None:
    """Refuses what only generation needs, and what changes the scores in other ways."""
    for what, position in (("keys", _KEYS), ("values", _VALUES)):
        past = e.optional_input(position)
        if past is not None and not (isinstance(past, gs.Constant) and 0 in past.shape):
            raise NotImportable(
                f"it reads {what} of the past ('{past.name}'), as decoders do that generate token by token; export the "
                "model without them (optimum-cli export onnx --task feature-extraction)"
            )
    for what, position in (("keys", 1), ("values", 2)):
        if e.is_read(position):
            raise NotImportable(f"its {what} are read (output {position}); leave them out with --outputs")
    if e.integer("local_window_size", -1) > 0 or e.number("softcap", 0.0) or e.integer("smooth_softmax"):
        raise NotImportable("it has a window, a cap or a smooth softmax (local_window_size, softcap, smooth_softmax)")
    if any(e.optional_input(position) is not None for position in range(_BIAS + 1, len(e.node.inputs))):
        raise NotImportable(f"it has more than {_BIAS + 1} inputs")


def _parts(e: Expansion, heads: int, groups: int) -> list[gs.Tensor]:
    """Q, K and V, which may be in one tensor."""
    query, key, value = e.input(0, "query"), e.optional_input(1), e.optional_input(2)
    if key is not None and value is not None:
        return [query, key, value]
    width = e.width(query, "query")
    if key is not None or value is not None or width % (heads + 2 * groups):
        raise NotImportable(f"its query has {width} columns, which are not those of {heads} + 2 x {groups} heads")
    size = width // (heads + 2 * groups)
    ends = np.cumsum([0, heads * size, groups * size, groups * size])
    return [e.columns(query, int(start), int(end)) for start, end in pairwise(ends)]


def _padding(e: Expansion, like: gs.Tensor) -> gs.Tensor:
    """[B,1,1,S]: 0 for the keys of a sequence, the lowest number after its length."""
    is_token = within_lengths(e, _counts(e, e.input(_LENGTHS, "lengths")), like)
    return e.unsqueeze(e.op("Where", is_token, 0.0, e.constant(_LOWEST)), 1, 2)


def _counts(e: Expansion, lengths: gs.Tensor) -> gs.Tensor:
    """The numbers of tokens of the sequences, from a tensor of these numbers minus one."""
    current = e.uncast(lengths)
    less = made_by(current, "Sub", "Add")
    if less is not None and isinstance(less.inputs[1], gs.Constant) and less.inputs[1].values.size == 1:
        number = int(less.inputs[1].values.reshape(-1)[0])
        if number == (1 if less.op == "Sub" else -1):
            return e.uncast(less.inputs[0])
    return e.op("Add", e.op("Cast", current, to=TensorProto.INT64), 1)
