# SPDX-License-Identifier: Apache-2.0
"""DistilBERT: BERT's layers under other names, without token types and pooler (arXiv 1910.01108)."""

from __future__ import annotations

from ..attention import Projections
from ..blocks import LayerSizes, PostNormLayer, even_heads, layers_of, plain_layer
from ..encoder import embed, encoded_rows, encoder_tensors
from ..heads import dense_classes, heads, word_head
from ..keys import Keys
from ..layers import activation, activation_of, position_rows
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors

_EPSILON = 1e-12


def _encode(writing: Writing) -> EncoderRows:
    keys, sizes = writing.keys, _sizes(writing.keys)
    keys.only(pruned_heads={}, is_encoder_decoder=False, is_decoder=False)
    keys.ignore("dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_",
                "tie_word_embeddings")  # fmt: skip
    tensors = encoder_tensors(writing, "distilbert.")
    x = embed(writing, tensors, sizes, positions=position_rows)
    layers = layers_of(
        tensors,
        "transformer.layer",
        "attention.q_lin.weight",
        keys.size("n_layers", "num_hidden_layers", default=6),
        lambda parts: _layer(parts, sizes),
    )
    return encoded_rows(writing, tensors, sizes, x, layers, ("position_ids", "pre_classifier.", "vocab_"))


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
    attention = Projections.of(parts, (f"attention.{name}_lin" for name in ("q", "k", "v", "out")), sizes.width)
    return plain_layer(parts, sizes, attention, ("ffn.lin1", "ffn.lin2"), ("sa_layer_norm", "output_layer_norm"))


_MASK_HEAD = word_head(
    "", "vocab_transform", "vocab_layer_norm", "vocab_projector", active_key="activation", epsilon=_EPSILON
)
DISTILBERT = Definition(
    "DistilBERT",
    of_type("distilbert"),
    _encode,
    lambda _: 0,
    heads(dense_classes("pre_classifier", "classifier", activation_of("relu")), _MASK_HEAD),
    hides_tokens=True,
)
