# SPDX-License-Identifier: Apache-2.0
"""Tokens that get rows, and that no token sees: those that ColBERT adds to a query and leaves out of its mask.

A mask that differs from padding would keep attention padded. So each head gets more columns: in one of them, queries
have 1, and the key of an unseen token has a number so low that the token's weight is 0 in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from padfree.onnx_tools.files import Floats

from .errors import NotDefinedError
from .graph import EncoderGraph
from .layers import Linear
from .reader import MadeWeight

MORE = 8
"""Columns that each head gets, as kernels take multiples of 8: half of them end each half, which rotations pair."""
LOW = -16_000.0
"""The key of an unseen token in its column: below -1,000 with the scale of 256 columns, and with room left in fp16."""


def project(
    graph: EncoderGraph, x: str, layers: tuple[Linear, Linear, Linear], heads: int, size: int
) -> tuple[str, str, str]:
    """Queries, keys and values of x [B, S, E], [B, S, H*(D+MORE)] each, of heads of D = `size` numbers.

    Raises:
        NotDefinedError: heads have an odd size, or queries share keys.
    """
    if size % 2 or any(layer.weight.shape[0] != heads * size for layer in layers):
        raise NotDefinedError("unseen tokens need heads of an even size, and as many keys as queries")
    wide, weights = heads * (size + MORE), tuple(layer.weight for layer in layers)
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    ones, lows = (_marks(heads, size, number) for number in (1.0, LOW))
    zeros = np.zeros(wide, np.float32)

    def joined_weights(arrays: Sequence[Floats]) -> Floats:
        return np.concatenate([_widen(array.T, size) for array in arrays], axis=1)

    def joined_biases(arrays: Sequence[Floats]) -> Floats:
        own = [_widen(array, size) for array in arrays] or [zeros] * 3
        result: Floats = np.concatenate(own) + np.concatenate([ones, zeros, zeros])
        return result

    name = weights[0].name
    weight = MadeWeight(f"{name}/with keys and values", (weights[0].shape[1], 3 * wide), weights, joined_weights)
    bias = MadeWeight(f"{name}/biases and marks", (3 * wide,), biases, joined_biases)
    fused = graph.op("Add", graph.op("MatMul", x, graph.weight(weight)), graph.weight(bias))
    marks = graph.op("Mul", graph.is_unseen(), graph.constant(np.concatenate([zeros, lows, zeros])))
    fused = graph.op("Add", fused, marks)
    query, key, value = (graph.op("Slice", fused, [at * wide], [(at + 1) * wide], [-1]) for at in range(3))
    return query, key, value


def project_out(graph: EncoderGraph, x: str, layer: Linear, size: int) -> str:
    """The output layer of what heads of D + MORE columns give, [B, S, H*(D+MORE)]: [B, S, E]."""
    width, columns = layer.weight.shape
    shape = (columns // size * (size + MORE), width)
    weight = MadeWeight(f"{layer.weight.name}/wide", shape, (layer.weight,), lambda arrays: _widen(arrays[0], size).T)
    matmul = graph.op("MatMul", x, graph.weight(weight))
    return matmul if layer.bias is None else graph.op("Add", matmul, graph.weight(layer.bias))


def _widen(values: Floats, size: int) -> Floats:
    """[..., H*D] as [..., H*(D+MORE)], with zeros at the end of each half of a head; `size` is D."""
    halves = values.reshape(*values.shape[:-1], -1, size // 2)
    wide = np.pad(halves, [(0, 0)] * (halves.ndim - 1) + [(0, MORE // 2)])
    result: Floats = wide.reshape(*values.shape[:-1], -1)
    return result


def _marks(heads: int, size: int, number: float) -> Floats:
    """[H*(D+MORE)] with a number in the first column that each head got, and zeros elsewhere."""
    marks = np.zeros((heads, size + MORE), np.float32)
    marks[:, size // 2] = number
    return marks.reshape(-1)
