# SPDX-License-Identifier: Apache-2.0
"""ALBERT: a few layers that are applied repeatedly, and narrow embeddings (arXiv 1909.11942)."""

from __future__ import annotations

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer
from ..heads import heads, masked_words, pooled_classes
from ..layers import FeedForward, Linear, Norm, activation, add, position_rows
from ..model import Definition, EncoderRows, Outputs, Writing
from ..tensors import Tensors
from . import bert

_VOCABULARY = 30000


def _encode(writing: Writing) -> EncoderRows:
    keys, graph = writing.keys, writing.graph
    sizes = bert.sizes_of(keys, width=4096, heads=64, inner=16384, active="gelu_new")
    bert.check_keys(keys)
    # gap_size, num_memory_blocks and net_structure_type are of the first release, and were never read.
    keys.ignore("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    tensors = writing.tensors.below("", "albert.", member="embeddings.word_embeddings.weight")
    narrow = keys.size("embedding_size", default=128)
    with graph.scope("embeddings"):
        rows = keys.size("max_position_embeddings", default=512)
        where = position_rows(graph, tensors.take("embeddings.position_embeddings.weight", rows, narrow))
        x = add(graph, *bert.word_and_type(writing, tensors, narrow, _VOCABULARY), where)
        x = Norm.of(tensors, "embeddings.LayerNorm", narrow, sizes.epsilon).apply(graph, x)
        x = Linear.of(tensors, "encoder.embedding_hidden_mapping_in", sizes.width, narrow).apply(graph, x)
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph))
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
    width, inner = sizes.width, sizes.inner
    names = ("query", "key", "value", "dense")
    up, down = Linear.of(parts, "ffn", inner, width), Linear.of(parts, "ffn_output", width, inner)
    return PostNormLayer(
        Projections(*(Linear.of(parts, f"attention.{name}", width, width) for name in names)),
        Norm.of(parts, "attention.LayerNorm", width, sizes.epsilon),
        FeedForward(up, sizes.active, down),
        Norm.of(parts, "full_layer_layer_norm", width, sizes.epsilon),
    )


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, head = writing.keys, writing.tensors.below("predictions.", member="dense.weight")
    narrow, epsilon = keys.size("embedding_size", default=128), keys.number("layer_norm_eps", default=1e-12)
    dense, norm = Linear.of(head, "dense", narrow, encoded.width), Norm.of(head, "LayerNorm", narrow, epsilon)
    active = activation(keys, "hidden_act", default="gelu_new")
    last = bert.tied_words(writing, EncoderRows("", narrow, encoded.tensors), head, _VOCABULARY)
    return masked_words(writing, encoded, dense, active, norm, last)


ALBERT = Definition(
    "ALBERT",
    lambda keys, _: keys.raw.get("model_type") == "albert",
    _encode,
    bert.token_types,
    heads(pooled_classes("pooler"), _mask_head),
)
