# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's first version: distances without buckets, and one projection with interleaved heads (arXiv 2006.03654)."""

from __future__ import annotations

import numpy as np

from ..blocks import LayerSizes, PostNormLayer
from ..distances import Distances
from ..encoder import sizes_of
from ..keys import Keys
from ..layers import Linear
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors
from .deberta import HEADS, Version, encode, furthest_of, layer_of, token_types


def _encode(writing: Writing) -> EncoderRows:
    writing.keys.only(talking_head=False)
    writing.keys.ignore("conv_act")
    encoded = encode(writing, sizes_of(writing.keys, epsilon=1e-7), _V1)
    encoded.tensors.ignore("cls.")
    return encoded


def _projections(_: Keys, parts: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> dict[str, Linear]:
    tables = {"c2p": ("pos_proj", False), "p2c": ("pos_q_proj", True)}
    return {
        term: Linear.of(parts, f"attention.self.{name}", sizes.width, sizes.width, bias=bias)
        for term, (name, bias) in tables.items()
        if term in terms
    }


def _distances(writing: Writing, tensors: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> Distances:
    graph, furthest = writing.graph, furthest_of(writing.keys)
    with graph.scope("distances"):
        table = graph.weight(tensors.take("encoder.rel_embeddings.weight", 2 * furthest, sizes.width))
        offsets = np.arange(-furthest, furthest + 1)
        return Distances.of(graph, table, offsets, furthest, sizes.heads.size, terms)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, count = sizes.width, sizes.heads.queries
    all_rows = parts.take("attention.self.in_proj.weight", 3 * width, width)
    query, key, value = (all_rows.interleave(count, 3, number) for number in range(3))
    q_bias, v_bias = (parts.take(f"attention.self.{name}_bias", width) for name in "qv")
    return layer_of(parts, sizes, Linear(query, q_bias), Linear(key, None), Linear(value, v_bias))


_V1 = Version(50265, 12, "attention.self.in_proj.weight", _distances, _layer, _projections)
DEBERTA_V1 = Definition(
    "DeBERTa",
    of_type("deberta"),
    _encode,
    token_types,
    HEADS,
)
