# SPDX-License-Identifier: Apache-2.0
"""ALBERT: a few layers that are applied repeatedly, and narrow embeddings (arXiv 1909.11942)."""

from __future__ import annotations

from ..attention import Projections
from ..blocks import LayerSizes, PostNormLayer, plain_layer
from ..encoder import check_keys, embed, encoder_tensors, plain_scoring, sizes_of, token_types
from ..heads import heads, pooled_classes, word_head
from ..layers import Linear, position_rows
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors

_VOCABULARY = 30000


def _encode(writing: Writing) -> EncoderRows:
    keys, graph = writing.keys, writing.graph
    sizes = sizes_of(keys, width=4096, heads=64, inner=16384, active="gelu_new")
    check_keys(keys)
    # gap_size, num_memory_blocks and net_structure_type are of the first release, and were never read.
    keys.ignore("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    tensors = encoder_tensors(writing, "albert.")
    narrow = keys.size("embedding_size", default=128)
    x = embed(writing, tensors, sizes, vocabulary=_VOCABULARY, width=narrow, positions=position_rows)
    with graph.scope("embeddings"):
        x = Linear.of(tensors, "encoder.embedding_hidden_mapping_in", sizes.width, narrow).apply(graph, x)
    scoring = plain_scoring(writing, sizes)
    count, groups = keys.size("num_hidden_layers", default=12), keys.size("num_hidden_groups", default=1)
    each = keys.size("inner_group_num", default=1)
    for number in range(count):
        with graph.scope(f"layer.{number}"):
            group = f"encoder.albert_layer_groups.{int(number / (count / groups))}.albert_layers"
            for inside in range(each):
                parts = tensors.below(f"{group}.{inside}.", member="attention.query.weight")
                x = _layer(parts, sizes).apply(graph, x, sizes.heads, scoring)
    tensors.ignore("position_ids", "pooler.", "predictions.", "sop_classifier.")
    return EncoderRows(x, sizes.width, tensors)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    names = ("query", "key", "value", "dense")
    attention = Projections.of(parts, (f"attention.{name}" for name in names), sizes.width)
    return plain_layer(parts, sizes, attention, ("ffn", "ffn_output"), ("attention.LayerNorm", "full_layer_layer_norm"))


_MASK_HEAD = word_head(
    "predictions.",
    "dense",
    "LayerNorm",
    vocabulary=_VOCABULARY,
    active="gelu_new",
    active_key="hidden_act",
    is_narrow=True,
)
ALBERT = Definition(
    "ALBERT",
    of_type("albert"),
    _encode,
    token_types,
    heads(pooled_classes("pooler"), _MASK_HEAD),
)
