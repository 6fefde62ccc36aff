# SPDX-License-Identifier: Apache-2.0
"""What Llama and its relatives share, causal or not: RMS norms before attention and gated feed-forward network.

Queries and keys are rotated; keys and values may have fewer heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .attention import FULL, Heads, Projections, Scoring, mask
from .blocks import LayerSizes, PreNormLayer
from .errors import NotDefinedError
from .graph import EncoderGraph
from .heads import LAST_TOKEN_CLASSES, ROWS_ALONE
from .keys import Keys
from .layers import Activation, FeedForward, Linear, Norm, activation, words
from .model import Definition, EncoderRows, WriteHead, Writing, of_type
from .rotary import Rotary, frequencies
from .tensors import Tensors

WORDS = "embed_tokens.weight"
"""The name of the word embeddings."""


def _all_full(keys: Keys, count: int) -> Sequence[str]:
    keys.only(sliding_window=None)
    return (FULL,) * count


@dataclass(frozen=True)
class Decoder:
    """What a family has where config.json does not say, and where it differs from the others.

    Attributes:
        vocabulary, width, inner, layers, heads, positions: sizes.
        key_heads: None: as many as there are of queries.
        head_size: None: the width, shared by the heads.
        epsilon: the norms'.
        has_bias: whether queries, keys and values, and the output have biases; None: as attention_bias says.
        has_network_bias: whether config.json may give biases to feed-forward networks.
        has_key_norms: whether heads of queries and keys have norms.
        kinds: which attention every layer has, of so many.
        window: how many tokens back a query sees in SLIDING layers.
        is_causal: whether keys after the query are not seen, unless `is_causal` says it.
        plus: what is added to the weights of norms.
        scales_words: whether embeddings are multiplied by the root of the width.
        active: the activation of feed-forward networks.
        norms: names of a layer's norms: before attention and feed-forward network, and after them where it has four.
    """

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    positions: int
    key_heads: int | None = None
    head_size: int | None = None
    epsilon: float = 1e-6
    has_bias: tuple[bool, bool] | None = None
    has_network_bias: bool = False
    has_key_norms: bool = False
    kinds: Callable[[Keys, int], Sequence[str]] = _all_full
    window: int | None = None
    is_causal: bool = True
    plus: float = 0.0
    scales_words: bool = False
    active: Callable[[Keys], Activation] = lambda keys: activation(keys, "hidden_act", default="silu")
    norms: tuple[str, ...] = ("input", "post_attention")

    def definition(
        self,
        name: str,
        model_type: str,
        heads: Mapping[str, WriteHead] = LAST_TOKEN_CLASSES,
        code: frozenset[str] = frozenset(),
    ) -> Definition:
        """The definition of models of this type, with these heads beside their rows; `code` as Definition has it."""
        return Definition(name, of_type(model_type), self._encode, lambda _: 0, {**ROWS_ALONE, **heads}, code)

    def _encode(self, writing: Writing) -> EncoderRows:
        keys, graph = writing.keys, writing.graph
        keys.only(pretraining_tp=1, use_mrope=False, is_encoder_decoder=False, add_cross_attention=False)
        keys.ignore("tie_word_embeddings", "classifier_pooling", "clf_pooling")
        tensors = writing.tensors.below("", "model.", member=WORDS)
        sizes = self._sizes(keys)
        kinds = self.kinds(keys, keys.size("num_hidden_layers", default=self.layers))
        x = self._embed(writing, tensors, sizes.width)
        positions = keys.size("max_position_embeddings", default=self.positions)
        scorings = self.scorings(keys, graph, kinds, sizes.heads.size, positions)
        for number, kind in enumerate(kinds):
            with graph.scope(f"layer.{number}"):
                parts = tensors.below(f"layers.{number}.", member="self_attn.q_proj.weight")
                scoring = self._with_norms(graph, parts, sizes, scorings[kind])
                x = self._layer(keys, parts, sizes).apply(graph, x, sizes.heads, scoring)
        x = self._norm(tensors, "norm", sizes.width, sizes.epsilon).apply(graph, x)
        tensors.ignore("rotary_emb.inv_freq")
        return EncoderRows(x, sizes.width, tensors)

    def scorings(
        self, keys: Keys, graph: EncoderGraph, kinds: Sequence[str], size: int, positions: int
    ) -> Mapping[str, Scoring]:
        """How scores are made, by kind of attention.

        Args:
            keys: those of config.json.
            graph: what gets the masks and the rotations.
            kinds: the kind of every layer.
            size: D.
            positions: max_position_embeddings.
        """
        masks = {kind: self._mask(keys, graph, kind) for kind in sorted(set(kinds))}
        rotary = Rotary.of(graph, frequencies(keys, size, 10_000.0, positions))
        return {kind: rotary.scoring(graph, masks[kind]) for kind in masks}

    def _sizes(self, keys: Keys) -> LayerSizes:
        width = keys.size("hidden_size", default=self.width)
        return LayerSizes(
            width,
            self._heads(keys, width),
            keys.size("intermediate_size", default=self.inner),
            self.active(keys),
            keys.number("rms_norm_eps", default=self.epsilon),
        )

    def _heads(self, keys: Keys, width: int) -> Heads:
        """Heads of queries and keys, which may be fewer; null stands for as many, and for an even share of the width.

        Raises:
            NotDefinedError: the heads do not go with each other, or with the width.
        """
        count = keys.size("num_attention_heads", default=self.heads)
        fewer = count if self.key_heads is None or "num_key_value_heads" in keys.raw else self.key_heads
        fewer = keys.size("num_key_value_heads", default=fewer)
        share = width // count if self.head_size is None or "head_dim" in keys.raw else self.head_size
        if count % fewer or not share:
            raise NotDefinedError(f"{count} heads of queries are no multiple of {fewer} heads of keys")
        if width % count and not keys.has("head_dim"):
            raise NotDefinedError(f"the hidden size {width} is no multiple of its {count} heads")
        return Heads(count, fewer, keys.size("head_dim", default=share))

    def _embed(self, writing: Writing, tensors: Tensors, width: int) -> str:
        """Word embeddings, times the root of their width or not."""
        graph, count = writing.graph, writing.keys.size("vocab_size", default=self.vocabulary)
        with graph.scope("embeddings"):
            x = words(graph, tensors.take(WORDS, count, width))
            return graph.op("Mul", x, math.sqrt(width)) if self.scales_words else x

    def _mask(self, keys: Keys, graph: EncoderGraph, kind: str) -> str:
        keys.only(use_bidirectional_attention=False, **({} if self.is_causal else {"is_causal": False}))
        causal = keys.boolean("is_causal", default=self.is_causal)
        keys.ignore("sliding_window")
        if kind == FULL:
            return mask(graph, causal=causal)
        if not causal:
            raise NotDefinedError("windows of layers that are not causal are not known")
        return mask(graph, causal=True, before=keys.size("sliding_window", default=self.window) - 1)

    def _layer(self, keys: Keys, parts: Tensors, sizes: LayerSizes) -> PreNormLayer:
        bias = self.has_bias or (keys.boolean("attention_bias", default=False),) * 2
        network_bias = self.has_network_bias and keys.boolean("mlp_bias", default=False)
        before, before_network, *after = (
            self._norm(parts, f"{name}_layernorm", sizes.width, sizes.epsilon) for name in self.norms
        )
        attention = _projections(parts, sizes, bias=bias[0], output_bias=bias[1])
        return PreNormLayer(attention, before, _gated_network(parts, sizes, bias=network_bias), before_network, *after)

    def _with_norms(self, graph: EncoderGraph, parts: Tensors, sizes: LayerSizes, scoring: Scoring) -> Scoring:
        """Scores of queries and keys, whose heads have norms before they are rotated, or not."""
        if not self.has_key_norms:
            return scoring
        query, key = (self._norm(parts, f"self_attn.{name}_norm", sizes.heads.size, sizes.epsilon) for name in "qk")
        return replace(
            scoring,
            rotate_queries=lambda x: scoring.rotate_queries(query.apply(graph, x)),
            rotate_keys=lambda x: scoring.rotate_keys(key.apply(graph, x)),
        )

    def _norm(self, tensors: Tensors, name: str, width: int, epsilon: float) -> Norm:
        return Norm.rms(tensors, name, width, epsilon, plus=self.plus)


def _gated_network(parts: Tensors, sizes: LayerSizes, *, bias: bool) -> FeedForward:
    """The feed-forward network under Llama's names."""
    gate, up = (Linear.of(parts, f"mlp.{name}_proj", sizes.inner, sizes.width, bias=bias) for name in ("gate", "up"))
    return FeedForward(up, sizes.active, Linear.of(parts, "mlp.down_proj", sizes.width, sizes.inner, bias=bias), gate)


def _projections(parts: Tensors, sizes: LayerSizes, *, bias: bool, output_bias: bool) -> Projections:
    """The linear layers of an attention under Llama's names."""
    widths = {"q": sizes.heads.width, "k": sizes.heads.key_width, "v": sizes.heads.key_width}
    query, key, value = (
        Linear.of(parts, f"self_attn.{name}_proj", width, sizes.width, bias=bias) for name, width in widths.items()
    )
    output = Linear.of(parts, "self_attn.o_proj", sizes.width, sizes.heads.width, bias=output_bias)
    return Projections(query, key, value, output)
