# SPDX-License-Identifier: Apache-2.0
"""BERT: layers whose norms follow the sums, positions and token types by tables (arXiv 1810.04805)."""

from __future__ import annotations

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, even_heads
from ..heads import heads, masked_words, own_or_tied, pooled_classes
from ..keys import Keys
from ..layers import FeedForward, Linear, Norm, activation, add, position_rows, types, words
from ..model import Definition, EncoderRows, Outputs, Writing
from ..tensors import Tensors

_VOCABULARY = 30522
WORDS = "embeddings.word_embeddings.weight"
"""The name of the word embeddings in the files of many families."""


def encode(writing: Writing) -> EncoderRows:
    """Word, type and position embeddings, a norm, and the layers."""
    keys, graph = writing.keys, writing.graph
    check_keys(keys)
    sizes = sizes_of(keys)
    tensors = writing.tensors.below("", "bert.", member="embeddings.word_embeddings.weight")
    with graph.scope("embeddings"):
        x = add(graph, *word_and_type(writing, tensors, sizes.width), _position_rows(writing, tensors, sizes.width))
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, sizes.epsilon).apply(graph, x)
    x = layers(writing, tensors, x, sizes)
    tensors.ignore("position_ids", "pooler.", "cls.seq_relationship", "cls.predictions")
    return EncoderRows(x, sizes.width, tensors)


def check_keys(keys: Keys) -> None:
    """Refuses settings that would make another model of a relative of BERT."""
    keys.only(position_embedding_type="absolute", pruned_heads={}, is_encoder_decoder=False)
    keys.only(is_decoder=False, add_cross_attention=False)
    keys.ignore("tie_word_embeddings")  # heads for which it matters read it


def sizes_of(
    keys: Keys,
    *,
    width: int = 768,
    heads: int = 12,
    inner: int = 3072,
    active: str = "gelu",
    epsilon: float = 1e-12,
    active_key: str = "hidden_act",
    epsilon_key: str = "layer_norm_eps",
) -> LayerSizes:
    """The sizes, by BERT's names and with these defaults; relatives have other defaults, and other names for two."""
    hidden = keys.size("hidden_size", default=width)
    return LayerSizes(
        hidden,
        even_heads(hidden, keys.size("num_attention_heads", default=heads)),
        keys.size("intermediate_size", default=inner),
        activation(keys, active_key, default=active),
        keys.number(epsilon_key, default=epsilon),
    )


def word_and_type(writing: Writing, tensors: Tensors, width: int, vocabulary: int = _VOCABULARY) -> tuple[str, str]:
    """Embeddings of ids and of token types; `vocabulary` is the default of vocab_size."""
    keys = writing.keys
    table = tensors.take(WORDS, keys.size("vocab_size", default=vocabulary), width)
    kinds = tensors.take("embeddings.token_type_embeddings.weight", token_types(keys), width)
    return words(writing.graph, table), types(writing.graph, kinds)


def _position_rows(writing: Writing, tensors: Tensors, width: int) -> str:
    rows = writing.keys.size("max_position_embeddings", default=512)
    return position_rows(writing.graph, tensors.take("embeddings.position_embeddings.weight", rows, width))


def layers(writing: Writing, tensors: Tensors, x: str, sizes: LayerSizes) -> str:
    """BERT's layers of x [B, S, E]."""
    graph, scoring = writing.graph, Scoring(sizes.heads.size**-0.5, mask(writing.graph))
    for number in range(writing.keys.size("num_hidden_layers", default=12)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layer.{number}.", member="attention.self.query.weight")
            x = layer(parts, sizes).apply(graph, x, sizes.heads, scoring)
    return x


def layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    """One layer's tensors."""
    width, inner = sizes.width, sizes.inner
    up, down = Linear.of(parts, "intermediate.dense", inner, width), Linear.of(parts, "output.dense", width, inner)
    return PostNormLayer(
        projections(parts, width),
        Norm.of(parts, "attention.output.LayerNorm", width, sizes.epsilon),
        FeedForward(up, sizes.active, down),
        Norm.of(parts, "output.LayerNorm", width, sizes.epsilon),
    )


def projections(parts: Tensors, width: int) -> Projections:
    """The linear layers of an attention."""
    names = ("self.query", "self.key", "self.value", "output.dense")
    return Projections(*(Linear.of(parts, f"attention.{name}", width, width) for name in names))


def token_types(keys: Keys) -> int:
    """How many token types there are."""
    return keys.size("type_vocab_size", default=2)


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, width = writing.keys, encoded.width
    head = writing.tensors.below("cls.predictions.", member="transform.dense.weight")
    dense = Linear.of(head, "transform.dense", width, width)
    norm = Norm.of(head, "transform.LayerNorm", width, keys.number("layer_norm_eps", default=1e-12))
    active = activation(keys, "hidden_act", default="gelu")
    return masked_words(writing, encoded, dense, active, norm, tied_words(writing, encoded, head, _VOCABULARY))


def tied_words(writing: Writing, encoded: EncoderRows, head: Tensors, vocabulary: int) -> Linear:
    """The layer from rows to words: its own weights where the file has them, otherwise the embeddings'."""
    keys, width = writing.keys, encoded.width
    count, is_tied = keys.size("vocab_size", default=vocabulary), keys.boolean("tie_word_embeddings", default=True)
    table = own_or_tied(head, "decoder.weight", encoded.tensors, WORDS, (count, width), is_tied=is_tied)
    return Linear(table, head.take("decoder.bias" if "decoder.bias" in head else "bias", count))


def _matches(keys: Keys, _names: frozenset[str]) -> bool:
    return keys.raw.get("model_type") == "bert" and keys.raw.get("position_embedding_type") != "alibi"


BERT = Definition("BERT", _matches, encode, token_types, heads(pooled_classes(), _mask_head))
