# SPDX-License-Identifier: Apache-2.0
"""What is added to scores by the distance between query and key: learned numbers, slopes, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .attention import Heads, distances, split_heads
from .graph import EncoderGraph
from .layers import Linear, add
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


@dataclass(frozen=True)
class Distances:
    """Embeddings of distances, whose products with queries and keys are terms of DeBERTa's scores.

    Attributes:
        rows: the table [2 R, E], normed where the model norms it.
        offsets: for every query and key the row for how far the query is after the key, [S, S].
        ahead: the row for how far it is before the key.
        scale: of all terms of scores.
    """

    rows: str
    offsets: str
    ahead: str
    scale: float

    @staticmethod
    def of(
        graph: EncoderGraph, rows: str, buckets: Integers, span: int, size: int, terms: tuple[str, ...]
    ) -> Distances:
        """The embeddings of distances from -N to N, whose buckets are given; the table has 2 * `span` rows.

        Scores have these terms, of heads of this size.
        """
        after, ahead = (
            by_distance(graph, np.clip(sign * buckets + span, 0, 2 * span - 1), len(buckets) // 2) for sign in (1, -1)
        )
        return Distances(rows, after, ahead, (size * (1 + len(terms))) ** -0.5)

    def terms(self, graph: EncoderGraph, heads: Heads, layers: Mapping[str, Linear]) -> Callable[[str, str], str]:
        """A function that adds up the terms of queries and keys [B, H, S, D]: [B, H, S, S].

        `layers` make of the embeddings the keys of the term c2p, and the queries of p2c.
        """
        tables = {term: _transpose(graph, layer.apply(graph, self.rows), heads) for term, layer in layers.items()}

        def terms_of(q: str, k: str) -> str:
            terms = []
            if "c2p" in tables:
                terms.append(_choose(graph, q, tables["c2p"], self.offsets))
            if "p2c" in tables:
                bias = _choose(graph, k, tables["p2c"], self.ahead)
                terms.append(graph.op("Transpose", bias, perm=[0, 1, 3, 2]))
            return graph.op("Mul", add(graph, *terms), graph.constant(self.scale))

        return terms_of


def _transpose(graph: EncoderGraph, rows: str, sizes: Heads) -> str:
    """Rows [2 R, H * D] as [1, H, D, 2 R]."""
    heads_of_rows = split_heads(graph, graph.unsqueeze(rows, 0), sizes.queries, sizes.size)
    return graph.op("Transpose", heads_of_rows, perm=[0, 1, 3, 2])


def _choose(graph: EncoderGraph, x: str, table: str, index: str) -> str:
    """Dot products of x [B, H, S, D] with the rows of the table that the index [S, S] names: [B, H, S, S]."""
    products = graph.op("MatMul", x, table)
    size = graph.op("Shape", products, start=0, end=3)
    shape = graph.op("Concat", size, graph.op("Shape", index, start=1, end=2), axis=0)
    return graph.op("GatherElements", products, graph.op("Expand", index, shape), axis=3)
