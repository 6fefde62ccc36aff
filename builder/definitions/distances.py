# SPDX-License-Identifier: Apache-2.0
"""What is added to scores by the distance between query and key: learned numbers by bucket, and slopes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .attention import distances
from .graph import EncoderGraph
from .tensors import Weight

Integers = npt.NDArray[np.int64]


def two_sided_buckets(distance: Integers, count: int, furthest: int) -> Integers:
    """The bucket of a key that is so far after the query, as T5 has them (arXiv 1910.10683).

    Half of the buckets are for keys after the query. In each half, one half of the buckets hold a single distance, and
    the rest grow with the logarithm up to `furthest`. Numbers are rounded as torch rounds them, in float32.
    """
    half = count // 2
    single = half // 2
    after, far = np.where(distance > 0, half, 0), np.abs(distance)
    with np.errstate(divide="ignore"):
        logs = np.log(far.astype(np.float32) / np.float32(single))
    buckets = logs / np.float32(math.log(furthest / single)) * np.float32(half - single)
    large = np.minimum(single + np.where(far < single, 0, buckets).astype(np.int64), half - 1)
    return after + np.where(far < single, far, large)


def bucket_bias(graph: EncoderGraph, table: Weight, furthest: int) -> str:
    """Rows of the table [buckets, H] by the bucket of every distance: [1, H, S, S].

    Args:
        graph: what gets the nodes.
        table: a number per bucket and head.
        furthest: from this distance on, the last bucket is taken.
    """
    with graph.scope("position_bias"):
        offsets = np.arange(-furthest, furthest + 1)
        buckets = by_distance(graph, two_sided_buckets(-offsets, table.shape[0], furthest), furthest)
        bias = graph.op("Transpose", graph.op("Gather", graph.weight(table), buckets), perm=[2, 0, 1])
        return graph.unsqueeze(bias, 0)


def log_buckets(distance: Integers, count: int, furthest: int) -> Integers:
    """The bucket of a query that is so far after the key, as DeBERTa v2 has them (arXiv 2006.03654).

    Distances up to half of `count` have a bucket each; the others grow with the logarithm. Numbers are rounded as torch
    rounds them, in float32.
    """
    half = count // 2
    far = np.maximum(np.abs(distance), half).astype(np.float32)
    logs = np.log(far / np.float32(half)) / np.log(np.float32((furthest - 1) / half))
    buckets = np.ceil(logs * np.float32(half - 1)).astype(np.int64) + half
    return np.where(np.abs(distance) <= half, distance, buckets * np.sign(distance))


def by_distance(graph: EncoderGraph, numbers: Integers, reach: int) -> str:
    """A whole number for every query and key, by how far the query is after the key: [S, S].

    Args:
        graph: what gets the nodes.
        numbers: for distances from -reach to reach, beyond which the outermost ones count.
        reach: R.
    """
    low, high = (graph.constant(number, np.int64) for number in (-reach, reach))
    offsets = graph.op("Clip", graph.op("Neg", distances(graph)), low, high)
    return graph.op("Gather", graph.constant(numbers, np.int64), graph.op("Add", offsets, high))


def alibi_slopes(heads: int) -> npt.NDArray[np.float32]:
    """A slope per head (arXiv 2108.12409): a series for powers of two, then every other slope of the next power's."""
    base = 1 << (heads.bit_length() - 1)

    def series(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (head + 1) / count) for head in range(count)]

    return np.asarray(series(base) + series(2 * base)[0::2][: heads - base], np.float32)


def alibi(graph: EncoderGraph, heads: int) -> str:
    """Minus slope times distance, whether query or key comes first: [1, H, S, S]."""
    with graph.scope("position_bias"):
        slopes = graph.constant(-alibi_slopes(heads)[None, :, None, None])
        far = graph.op("Cast", graph.op("Abs", distances(graph)), to=1)
        return graph.op("Mul", graph.unsqueeze(far, 0, 1), slopes)
