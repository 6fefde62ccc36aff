# SPDX-License-Identifier: Apache-2.0
"""ELECTRA: BERT whose embeddings may be narrower than its layers (arXiv 2003.10555)."""

from __future__ import annotations

from ..blocks import apply_layers
from ..heads import dense_classes, heads, masked_words, own_or_tied
from ..layers import Linear, activation_of, position_rows
from ..model import Definition, EncoderRows, Outputs, Writing, of_type
from . import bert

_VOCABULARY = 30522


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, bert.sizes_of(writing.keys, width=256, heads=4, inner=1024)
    bert.check_keys(keys)
    keys.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")  # multiple choice
    tensors = bert.encoder_tensors(writing, "electra.")
    narrow = keys.size("embedding_size", default=128)
    x = bert.embed(writing, tensors, sizes, bert.token_types(keys), width=narrow, positions=position_rows)
    if narrow != sizes.width:
        with graph.scope("embeddings"):
            x = Linear.of(tensors, "embeddings_project", sizes.width, narrow).apply(graph, x)
    x = apply_layers(graph, x, bert.layers(keys, tensors, sizes), sizes.heads, bert.plain_scoring(writing, sizes))
    tensors.ignore("position_ids", "discriminator_predictions.", "generator_")
    return EncoderRows(x, sizes.width, tensors)


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, tensors = writing.keys, writing.tensors
    narrow, count = keys.size("embedding_size", default=128), keys.size("vocab_size", default=_VOCABULARY)
    is_tied, names = keys.boolean("tie_word_embeddings", default=True), ("generator_lm_head.weight", bert.WORDS)
    table = own_or_tied(tensors, names[0], encoded.tensors, names[1], (count, narrow), is_tied=is_tied)
    last = Linear(table, tensors.take("generator_lm_head.bias", count))
    layers = ("generator_predictions.dense", "generator_predictions.LayerNorm")
    return masked_words(writing, encoded, tensors, layers, activation_of("gelu"), last, bert.head_epsilon(writing))


ELECTRA = Definition(
    "ELECTRA",
    of_type("electra"),
    _encode,
    bert.token_types,
    heads(dense_classes("classifier.dense", "classifier.out_proj", activation_of("gelu")), _mask_head),
)
