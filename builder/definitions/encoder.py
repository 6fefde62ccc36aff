# SPDX-License-Identifier: Apache-2.0
"""What BERT and its relatives share: sizes under BERT's names, embeddings, and layers up to the rows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .attention import Scoring, mask
from .blocks import LayerSizes, PostNormLayer, apply_layers, even_heads
from .graph import EncoderGraph
from .keys import Keys
from .layers import Norm, activation, add, types, words
from .model import EncoderRows, Writing
from .tensors import Tensors, Weight

WORDS = "embeddings.word_embeddings.weight"
"""The name of the word embeddings in the files of many families."""
VOCABULARY = 30522
"""How many words BERT has."""


def check_keys(keys: Keys) -> None:
    """Refuses settings that would make another model of a relative of BERT."""
    keys.only(
        position_embedding_type="absolute",
        pruned_heads={},
        is_encoder_decoder=False,
        is_decoder=False,
        add_cross_attention=False,
    )
    keys.ignore("tie_word_embeddings")  # heads for which it matters read it


def sizes_of(
    keys: Keys,
    *,
    width: int | None = 768,
    heads: int | None = 12,
    inner: int | None = 3072,
    active: str | None = "gelu",
    epsilon: float | None = 1e-12,
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


def token_types(keys: Keys) -> int:
    """How many token types there are."""
    return keys.size("type_vocab_size", default=2)


def encoder_tensors(writing: Writing, *prefixes: str) -> Tensors:
    """The tensors of the encoder, whose names may have one of these prefixes."""
    return writing.tensors.below("", *prefixes, member=WORDS)


def embed(
    writing: Writing,
    tensors: Tensors,
    sizes: LayerSizes,
    *,
    vocabulary: int | None = VOCABULARY,
    width: int | None = None,
    positions: Callable[[EncoderGraph, Weight], str] | None = None,
    rows: int | None = 512,
    norm: str = "embeddings.LayerNorm",
) -> str:
    """The sum of embeddings of ids, token types and positions, through a norm: [B, S, E].

    Args:
        writing: the model.
        tensors: those of the encoder.
        sizes: those of its layers.
        vocabulary: the default of vocab_size.
        width: the embeddings', if it differs from that of the layers.
        positions: chooses rows of a table of positions; None where the model has no table.
        rows: the default of max_position_embeddings.
        norm: its name.
    """
    keys, graph, width = writing.keys, writing.graph, width or sizes.width
    with graph.scope("embeddings"):
        terms = [words(graph, tensors.take(WORDS, keys.size("vocab_size", default=vocabulary), width))]
        if writing.kinds:
            terms.append(types(graph, tensors.take("embeddings.token_type_embeddings.weight", writing.kinds, width)))
        if positions is not None:
            count = keys.size("max_position_embeddings", default=rows)
            terms.append(positions(graph, tensors.take("embeddings.position_embeddings.weight", count, width)))
        return Norm.of(tensors, norm, width, sizes.epsilon).apply(graph, add(graph, *terms))


def plain_scoring(writing: Writing, sizes: LayerSizes) -> Scoring:
    """Scores by queries and keys alone."""
    return Scoring(sizes.heads.size**-0.5, mask(writing.graph))


def encoded_rows(
    writing: Writing,
    tensors: Tensors,
    sizes: LayerSizes,
    x: str,
    layers: Iterable[PostNormLayer],
    leftovers: Sequence[str],
    scoring: Scoring | None = None,
) -> EncoderRows:
    """x [B, S, E] through layers, with plain scores or others; `leftovers`: parts of names of tensors without a use."""
    x = apply_layers(writing.graph, x, layers, sizes.heads, scoring or plain_scoring(writing, sizes))
    tensors.ignore(*leftovers)
    return EncoderRows(x, sizes.width, tensors)
