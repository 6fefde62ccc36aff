# SPDX-License-Identifier: Apache-2.0
"""MPNet: counted positions, no token types, and one bias by distance for all layers (arXiv 2004.09297)."""

from __future__ import annotations

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer
from ..distances import bucket_bias
from ..heads import dense_classes, heads, masked_words
from ..layers import FeedForward, Linear, Norm, activation_of, add, counted_positions, words
from ..model import Definition, EncoderRows, Outputs, Writing
from ..tensors import Tensors
from . import bert
from .roberta import tanh

_PADDING = 1
_BUCKETS, _FURTHEST = 32, 128
_VOCABULARY = 30527


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, bert.sizes_of(writing.keys)
    bert.check_keys(keys)
    keys.only(relative_attention_num_buckets=_BUCKETS, pad_token_id=_PADDING)
    tensors = writing.tensors.below("", "mpnet.", member="embeddings.word_embeddings.weight")
    with graph.scope("embeddings"):
        count, rows = keys.size("vocab_size", default=_VOCABULARY), keys.size("max_position_embeddings", default=512)
        table = tensors.take("embeddings.word_embeddings.weight", count, sizes.width)
        where = tensors.take("embeddings.position_embeddings.weight", rows, sizes.width)
        x = add(graph, words(graph, table), counted_positions(graph, where, _PADDING))
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, sizes.epsilon).apply(graph, x)
    numbers = tensors.take("encoder.relative_attention_bias.weight", _BUCKETS, sizes.heads.queries)
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph), bucket_bias(graph, numbers, _FURTHEST))
    for number in range(keys.size("num_hidden_layers", default=12)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layer.{number}.", member="attention.attn.q.weight")
            x = _layer(parts, sizes).apply(graph, x, sizes.heads, scoring)
    tensors.ignore("position_ids", "pooler.", "lm_head.")
    return EncoderRows(x, sizes.width, tensors)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, inner = sizes.width, sizes.inner
    up, down = Linear.of(parts, "intermediate.dense", inner, width), Linear.of(parts, "output.dense", width, inner)
    return PostNormLayer(
        Projections(*(Linear.of(parts, f"attention.attn.{name}", width, width) for name in "qkvo")),
        Norm.of(parts, "attention.LayerNorm", width, sizes.epsilon),
        FeedForward(up, sizes.active, down),
        Norm.of(parts, "output.LayerNorm", width, sizes.epsilon),
    )


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    head, width = writing.tensors.below("lm_head.", member="dense.weight"), encoded.width
    dense = Linear.of(head, "dense", width, width)
    norm = Norm.of(head, "layer_norm", width, writing.keys.number("layer_norm_eps", default=1e-12))
    last = bert.tied_words(writing, encoded, head, _VOCABULARY)
    return masked_words(writing, encoded, dense, activation_of("gelu"), norm, last)


MPNET = Definition(
    "MPNet",
    lambda keys, _: keys.raw.get("model_type") == "mpnet",
    _encode,
    lambda _: 0,
    heads(dense_classes("classifier.dense", "classifier.out_proj", tanh), _mask_head),
)
