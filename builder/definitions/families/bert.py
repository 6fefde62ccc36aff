# SPDX-License-Identifier: Apache-2.0
"""BERT: layers whose norms follow the sums, positions and token types by tables (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, apply_layers, even_heads, layers_of, plain_layer
from ..graph import EncoderGraph
from ..heads import LOGITS, heads, own_or_tied, pooled_classes
from ..keys import Keys
from ..layers import Linear, Norm, activation, activation_of, add, position_rows, types, words
from ..model import Definition, EncoderRows, Outputs, WriteHead, Writing
from ..tensors import Tensors, Weight

_VOCABULARY = 30522
WORDS = "embeddings.word_embeddings.weight"
"""The name of the word embeddings in the files of many families."""


def encode(writing: Writing) -> EncoderRows:
    """Word, type and position embeddings, a norm, and the layers."""
    keys = writing.keys
    check_keys(keys)
    sizes = sizes_of(keys)
    tensors = encoder_tensors(writing, "bert.")
    x = embed(writing, tensors, sizes, token_types(keys), positions=position_rows)
    leftovers = ("position_ids", "pooler.", "cls.seq_relationship", "cls.predictions")
    return encoded_rows(writing, tensors, sizes, x, layers(keys, tensors, sizes), leftovers)


def check_keys(keys: Keys) -> None:
    """Refuses settings that would make another model of a relative of BERT."""
    keys.only(position_embedding_type="absolute", pruned_heads={}, is_encoder_decoder=False)
    keys.only(is_decoder=False, add_cross_attention=False)
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


def encoder_tensors(writing: Writing, *prefixes: str) -> Tensors:
    """The tensors of the encoder, whose names may have one of these prefixes."""
    return writing.tensors.below("", *prefixes, member=WORDS)


def embed(
    writing: Writing,
    tensors: Tensors,
    sizes: LayerSizes,
    kinds: int,
    *,
    vocabulary: int | None = _VOCABULARY,
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
        kinds: how many token types there are; 0 for none.
        vocabulary: the default of vocab_size.
        width: the embeddings', if it differs from that of the layers.
        positions: chooses rows of a table of positions; None where the model has no table.
        rows: the default of max_position_embeddings.
        norm: its name.
    """
    keys, graph, width = writing.keys, writing.graph, width or sizes.width
    with graph.scope("embeddings"):
        terms = [words(graph, tensors.take(WORDS, keys.size("vocab_size", default=vocabulary), width))]
        if kinds:
            terms.append(types(graph, tensors.take("embeddings.token_type_embeddings.weight", kinds, width)))
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


def layers(keys: Keys, tensors: Tensors, sizes: LayerSizes) -> Iterator[PostNormLayer]:
    """BERT's layers."""
    count = keys.size("num_hidden_layers", default=12)
    return layers_of(
        tensors,
        "encoder.layer",
        "attention.self.query.weight",
        count,
        lambda parts: layer(parts, sizes, projections(parts, sizes.width)),
    )


def layer(parts: Tensors, sizes: LayerSizes, attention: Projections) -> PostNormLayer:
    """A layer with this attention."""
    return plain_layer(
        parts,
        sizes,
        attention,
        ("intermediate.dense", "output.dense"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
    )


def projections(parts: Tensors, width: int) -> Projections:
    """The linear layers of an attention."""
    names = ("self.query", "self.key", "self.value", "output.dense")
    return Projections.of(parts, (f"attention.{name}" for name in names), width)


def token_types(keys: Keys) -> int:
    """How many token types there are."""
    return keys.size("type_vocab_size", default=2)


def word_head(
    prefix: str,
    dense: str,
    norm: str,
    words: str = "decoder",
    *,
    vocabulary: int = _VOCABULARY,
    active: str = "gelu",
    active_key: str = "",
    is_narrow: bool = False,
    epsilon: float | None = None,
) -> WriteHead:
    """A score for every word of the vocabulary at every token: words(norm(active(dense(x)))).

    The weights of `words` are the head's own where the file has them, otherwise the embeddings'.

    Args:
        prefix: how names of the head's tensors begin; `words` has names of its own, or its bias is named "bias".
        dense: a layer's name.
        norm: a layer's name.
        words: a layer's name.
        vocabulary: the default of vocab_size.
        active: the activation, or the default of `active_key`.
        active_key: the entry that names the activation; "" for none.
        is_narrow: whether embeddings, and so the head, have a width of their own.
        epsilon: the norm's; None: what layer_norm_eps says.
    """

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        keys, graph = writing.keys, writing.graph
        head = writing.tensors.below(prefix, member=f"{dense}.weight")
        width = keys.size("embedding_size", default=128) if is_narrow else encoded.width
        count, is_tied = keys.size("vocab_size", default=vocabulary), keys.boolean("tie_word_embeddings", default=True)
        table = own_or_tied(head, f"{words}.weight", encoded.tensors, WORDS, (count, width), is_tied=is_tied)
        bias = f"{words}.bias" if f"{words}.bias" in head else "bias"
        activate = activation(keys, active_key, default=active) if active_key else activation_of(active)
        small = keys.number("layer_norm_eps", default=1e-12) if epsilon is None else epsilon
        x = activate(graph, Linear.of(head, dense, width, encoded.width).apply(graph, encoded.rows))
        x = Norm.of(head, norm, width, small).apply(graph, x)
        return {LOGITS: (Linear(table, head.take(bias, count)).apply(graph, x), ("sequence", count))}

    return write


def _matches(keys: Keys, _names: frozenset[str]) -> bool:
    return keys.raw.get("model_type") == "bert" and keys.raw.get("position_embedding_type") != "alibi"


_MASK_HEAD = word_head("cls.predictions.", "transform.dense", "transform.LayerNorm", active_key="hidden_act")
BERT = Definition("BERT", _matches, encode, token_types, heads(pooled_classes(), _MASK_HEAD))
