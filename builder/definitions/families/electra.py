# SPDX-License-Identifier: Apache-2.0
"""ELECTRA: BERT whose embeddings may be narrower than its layers (arXiv 2003.10555)."""

from __future__ import annotations

from ..encoder import check_keys, embed, encoded_rows, encoder_tensors, sizes_of, token_types
from ..heads import dense_classes, heads, word_head
from ..layers import Linear, activation_of, position_rows
from ..model import Definition, EncoderRows, Writing, of_type
from . import bert


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, sizes_of(writing.keys, width=256, heads=4, inner=1024)
    check_keys(keys)
    keys.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")  # multiple choice
    tensors = encoder_tensors(writing, "electra.")
    narrow = keys.size("embedding_size", default=128)
    x = embed(writing, tensors, sizes, width=narrow, positions=position_rows)
    if narrow != sizes.width:
        with graph.scope("embeddings"):
            x = Linear.of(tensors, "embeddings_project", sizes.width, narrow).apply(graph, x)
    leftovers = ("position_ids", "discriminator_predictions.", "generator_")
    return encoded_rows(writing, tensors, sizes, x, bert.layers(keys, tensors, sizes), leftovers)


_MASK_HEAD = word_head(
    "", "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", is_narrow=True
)
ELECTRA = Definition(
    "ELECTRA",
    of_type("electra"),
    _encode,
    token_types,
    heads(dense_classes("classifier.dense", "classifier.out_proj", activation_of("gelu")), _MASK_HEAD),
)
