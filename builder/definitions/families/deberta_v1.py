# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's first version: distances without buckets, and one projection with interleaved heads (arXiv 2006.03654)."""

from __future__ import annotations

import numpy as np

from ..attention import Scoring, mask
from ..blocks import LayerSizes, PostNormLayer
from ..heads import heads
from ..layers import Linear
from ..model import Definition, EncoderRows, Writing
from ..tensors import Tensors
from . import bert
from .deberta import Distances, classes, embed, furthest_of, layer_of, terms_by_distance, terms_of, token_types

_VOCABULARY = 50265


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, bert.sizes_of(writing.keys, epsilon=1e-7)
    keys.ignore("pooler_dropout", "pooler_hidden_act", "legacy", "tie_word_embeddings", "padding_idx")
    keys.only(is_decoder=False, talking_head=False, pooler_hidden_size=sizes.width)
    tensors = bert.encoder_tensors(writing, "deberta.")
    x = embed(writing, tensors, sizes, _VOCABULARY)
    seen, terms = mask(graph), terms_of(keys)
    distances = _distances(writing, tensors, sizes, terms)
    for number in range(keys.size("num_hidden_layers", default=12)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layer.{number}.", member="attention.self.in_proj.weight")
            tables = {"c2p": ("pos_proj", False), "p2c": ("pos_q_proj", True)}
            layers = {
                term: Linear.of(parts, f"attention.self.{name}", sizes.width, sizes.width, bias=bias)
                for term, (name, bias) in tables.items()
                if term in terms
            }
            more = terms_by_distance(graph, distances, sizes.heads, layers)
            x = _layer(parts, sizes).apply(graph, x, sizes.heads, Scoring(distances.scale, seen, more=more))
    tensors.ignore("position_ids", "lm_predictions.", "mask_predictions.", "pooler.", "lm_head.", "cls.")
    return EncoderRows(x, sizes.width, tensors)


def _distances(writing: Writing, tensors: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> Distances:
    graph, furthest = writing.graph, furthest_of(writing.keys)
    with graph.scope("distances"):
        table = graph.weight(tensors.take("encoder.rel_embeddings.weight", 2 * furthest, sizes.width))
        offsets = np.arange(-furthest, furthest + 1)
        return Distances.of(graph, table, offsets, furthest, (sizes.heads.size * (1 + len(terms))) ** -0.5)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, count = sizes.width, sizes.heads.queries
    all_rows = parts.take("attention.self.in_proj.weight", 3 * width, width)
    query, key, value = (all_rows.interleave(count, 3, number) for number in range(3))
    q_bias, v_bias = (parts.take(f"attention.self.{name}_bias", width) for name in "qv")
    return layer_of(parts, sizes, Linear(query, q_bias), Linear(key, None), Linear(value, v_bias))


DEBERTA_V1 = Definition(
    "DeBERTa",
    lambda keys, _: keys.raw.get("model_type") == "deberta",
    _encode,
    token_types,
    heads(classes),
)
