# SPDX-License-Identifier: Apache-2.0
"""DistilBERT: BERT's layers under other names, without token types and pooler (arXiv 1910.01108)."""

from __future__ import annotations

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, even_heads
from ..graph import EncoderGraph
from ..heads import dense_classes, heads, masked_words, own_or_tied
from ..keys import Keys
from ..layers import FeedForward, Linear, Norm, activation, add, position_rows, words
from ..model import Definition, EncoderRows, Outputs, Writing
from ..tensors import Tensors

_EPSILON = 1e-12
_VOCABULARY = 30522


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, _sizes(writing.keys)
    keys.only(pruned_heads={}, is_encoder_decoder=False, is_decoder=False)
    keys.ignore("dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_",
                "tie_word_embeddings")  # fmt: skip
    tensors = writing.tensors.below("", "distilbert.", member="embeddings.word_embeddings.weight")
    with graph.scope("embeddings"):
        count, rows = keys.size("vocab_size", default=_VOCABULARY), keys.size("max_position_embeddings", default=512)
        table = tensors.take("embeddings.word_embeddings.weight", count, sizes.width)
        where = tensors.take("embeddings.position_embeddings.weight", rows, sizes.width)
        x = add(graph, words(graph, table), position_rows(graph, where))
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, _EPSILON).apply(graph, x)
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph))
    for number in range(keys.size("n_layers", "num_hidden_layers", default=6)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"transformer.layer.{number}.", member="attention.q_lin.weight")
            x = _layer(parts, sizes).apply(graph, x, sizes.heads, scoring)
    tensors.ignore("position_ids", "pre_classifier.", "vocab_")
    return EncoderRows(x, sizes.width, tensors)


def _sizes(keys: Keys) -> LayerSizes:
    width = keys.size("dim", "hidden_size", default=768)
    return LayerSizes(
        width,
        even_heads(width, keys.size("n_heads", "num_attention_heads", default=12)),
        keys.size("hidden_dim", default=3072),
        activation(keys, "activation", default="gelu"),
        _EPSILON,
    )


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, inner = sizes.width, sizes.inner
    query, key, value, output = (
        Linear.of(parts, f"attention.{name}_lin", width, width) for name in ("q", "k", "v", "out")
    )
    up, down = Linear.of(parts, "ffn.lin1", inner, width), Linear.of(parts, "ffn.lin2", width, inner)
    return PostNormLayer(
        Projections(query, key, value, output),
        Norm.of(parts, "sa_layer_norm", width, _EPSILON),
        FeedForward(up, sizes.active, down),
        Norm.of(parts, "output_layer_norm", width, _EPSILON),
    )


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, tensors, width = writing.keys, writing.tensors, encoded.width
    count, is_tied = keys.size("vocab_size", default=_VOCABULARY), keys.boolean("tie_word_embeddings", default=True)
    names = "vocab_projector.weight", "embeddings.word_embeddings.weight"
    table = own_or_tied(tensors, names[0], encoded.tensors, names[1], (count, width), is_tied=is_tied)
    last = Linear(table, tensors.take("vocab_projector.bias", count))
    dense = Linear.of(tensors, "vocab_transform", width, width)
    norm = Norm.of(tensors, "vocab_layer_norm", width, _EPSILON)
    return masked_words(writing, encoded, dense, activation(keys, "activation", default="gelu"), norm, last)


def _relu(graph: EncoderGraph, x: str) -> str:
    return graph.op("Relu", x)


DISTILBERT = Definition(
    "DistilBERT",
    lambda keys, _: keys.raw.get("model_type") == "distilbert",
    _encode,
    lambda _: 0,
    heads(dense_classes("pre_classifier", "classifier", _relu), _mask_head),
)
