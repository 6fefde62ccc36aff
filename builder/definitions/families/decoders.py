# SPDX-License-Identifier: Apache-2.0
"""Llama and its relatives, causal or not, as encoders: Mistral, Qwen 2 and 3, EuroBERT.

RMS norms come before attention and gated feed-forward network; keys and values may have fewer heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from padfree.contract.texts import CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE

from ..attention import FULL, SLIDING, Heads, Projections, Scoring, layer_kinds, mask
from ..blocks import LayerSizes, PreNormLayer
from ..errors import NotDefinedError
from ..graph import IDS, EncoderGraph
from ..heads import LOGITS, own_or_tied, rows
from ..keys import Keys
from ..layers import Activation, FeedForward, Linear, Norm, activation, activation_of, words
from ..model import Definition, EncoderRows, Outputs, WriteHead, Writing, of_type
from ..rotary import Rotary, frequencies
from ..tensors import Tensors

_WORDS = "embed_tokens.weight"


@dataclass(frozen=True)
class Defaults:
    """What a family has where config.json does not say, and where it differs from the others.

    Attributes:
        vocabulary, width, inner, layers, heads, positions: sizes.
        key_heads: None: as many as there are of queries.
        head_size: None: the width, shared by the heads.
        epsilon: the norms'.
        has_bias: whether queries, keys, values and the output have biases, where config.json has no entry for it.
        has_key_norms: whether heads of queries and keys have norms.
        window: how many tokens back a query sees; None for all.
        is_causal: whether keys after the query are not seen, unless `is_causal` says it.
        plus: what is added to the weights of norms.
        scales_words: whether embeddings are multiplied by the root of the width.
        active: the activation of feed-forward networks.
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
    has_key_norms: bool = False
    window: int | None = None
    is_causal: bool = True
    plus: float = 0.0
    scales_words: bool = False
    active: str = "silu"


def encoder(defaults: Defaults) -> Callable[[Writing], EncoderRows]:
    """What writes an encoder with these defaults."""

    def encode(writing: Writing) -> EncoderRows:
        keys, graph = writing.keys, writing.graph
        keys.only(pretraining_tp=1, use_mrope=False, is_encoder_decoder=False, add_cross_attention=False)
        keys.ignore("tie_word_embeddings", "classifier_pooling", "clf_pooling")
        sizes, kinds = _sizes(keys, defaults), _kinds(keys, defaults)
        x = embed(writing, sizes.width, defaults.vocabulary, is_scaled=defaults.scales_words)
        masks = {kind: _mask(keys, graph, defaults, kind) for kind in sorted(set(kinds))}
        rotary = _rotary(keys, graph, sizes.heads.size, defaults.positions)
        encoded = write_layers(
            writing,
            x,
            sizes,
            [Kind(sizes.heads.size**-0.5, masks[kind], rotary) for kind in kinds],
            lambda parts: _layer(keys, parts, sizes, defaults),
            has_norms=defaults.has_key_norms,
            plus=defaults.plus,
        )
        encoded.tensors.ignore("rotary_emb.inv_freq")
        return encoded

    return encode


def tensors_of(writing: Writing) -> Tensors:
    """The tensors of the encoder, whose names may have a prefix."""
    return writing.tensors.below("", "model.", member=_WORDS)


def embed(writing: Writing, width: int, vocabulary: int, *, is_scaled: bool) -> str:
    """Word embeddings, times the root of their width or not; `vocabulary` is the default of vocab_size."""
    graph, count = writing.graph, writing.keys.size("vocab_size", default=vocabulary)
    with graph.scope("embeddings"):
        x = words(graph, tensors_of(writing).take(_WORDS, count, width))
        return graph.op("Mul", x, math.sqrt(width)) if is_scaled else x


@dataclass(frozen=True)
class Kind:
    """How a layer makes scores: their scale, the mask, and the rotation of queries and keys."""

    scale: float
    mask: str
    rotary: Rotary


def write_layers(
    writing: Writing,
    x: str,
    sizes: LayerSizes,
    kinds: Sequence[Kind],
    layer: Callable[[Tensors], PreNormLayer],
    *,
    has_norms: bool,
    plus: float,
) -> EncoderRows:
    """A layer of each of these kinds, and the last norm.

    Args:
        writing: the model.
        x: embeddings [B, S, E].
        sizes: those of all layers.
        kinds: how each layer makes scores.
        layer: makes a layer of its tensors.
        has_norms: whether heads of queries and keys have norms.
        plus: what is added to the weights of norms.
    """
    graph, tensors = writing.graph, tensors_of(writing)
    for number, kind in enumerate(kinds):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"layers.{number}.", member="self_attn.q_proj.weight")
            queries, its_keys = _rotations_of(graph, parts, sizes, kind.rotary, has_norms=has_norms, plus=plus)
            scoring = Scoring(kind.scale, kind.mask, rotate_queries=queries, rotate_keys=its_keys)
            x = layer(parts).apply(graph, x, sizes.heads, scoring)
    x = Norm.rms(tensors, "norm", sizes.width, sizes.epsilon, plus=plus).apply(graph, x)
    return EncoderRows(x, sizes.width, tensors)


def _rotations_of(
    graph: EncoderGraph, parts: Tensors, sizes: LayerSizes, rotary: Rotary, *, has_norms: bool, plus: float
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions of queries and of keys [B, H, S, D]: a norm of every head where the model has one, and the rotation."""

    def rotate(name: str) -> Callable[[str], str]:
        if not has_norms:
            return lambda x: rotary.rotate(graph, x)
        norm = Norm.rms(parts, f"self_attn.{name}_norm", sizes.heads.size, sizes.epsilon, plus=plus)
        return lambda x: rotary.rotate(graph, norm.apply(graph, x))

    return rotate("q"), rotate("k")


def gated_network(parts: Tensors, sizes: LayerSizes, *, bias: bool = False) -> FeedForward:
    """The feed-forward network under Llama's names."""
    gate, up = (Linear.of(parts, f"mlp.{name}_proj", sizes.inner, sizes.width, bias=bias) for name in ("gate", "up"))
    return FeedForward(up, sizes.active, Linear.of(parts, "mlp.down_proj", sizes.width, sizes.inner, bias=bias), gate)


def projections(parts: Tensors, sizes: LayerSizes, *, bias: bool, output_bias: bool) -> Projections:
    """The linear layers of an attention under Llama's names."""
    widths = {"q": sizes.heads.width, "k": sizes.heads.key_width, "v": sizes.heads.key_width}
    query, key, value = (
        Linear.of(parts, f"self_attn.{name}_proj", width, sizes.width, bias=bias) for name, width in widths.items()
    )
    output = Linear.of(parts, "self_attn.o_proj", sizes.width, sizes.heads.width, bias=output_bias)
    return Projections(query, key, value, output)


def heads_of(keys: Keys, width: int, count: int, key_heads: int | None, size: int | None) -> Heads:
    """Heads of queries and keys, which may be fewer; null stands for as many, and for an even share of the width."""
    count = keys.size("num_attention_heads", default=count)
    fewer = count if key_heads is None or "num_key_value_heads" in keys.raw else key_heads
    fewer = keys.size("num_key_value_heads", default=fewer)
    share = width // count if size is None or "head_dim" in keys.raw else size
    if count % fewer or not share:
        raise NotDefinedError(f"{count} heads of queries are no multiple of {fewer} heads of keys")
    if width % count and not keys.has("head_dim"):
        raise NotDefinedError(f"the hidden size {width} is no multiple of its {count} heads")
    return Heads(count, fewer, keys.size("head_dim", default=share))


def _sizes(keys: Keys, defaults: Defaults) -> LayerSizes:
    width = keys.size("hidden_size", default=defaults.width)
    return LayerSizes(
        width,
        heads_of(keys, width, defaults.heads, defaults.key_heads, defaults.head_size),
        keys.size("intermediate_size", default=defaults.inner),
        _active(keys, defaults),
        keys.number("rms_norm_eps", default=defaults.epsilon),
    )


def _active(keys: Keys, defaults: Defaults) -> Activation:
    """The activation; Gemma's first files say "gelu" and mean its approximation."""
    if keys.raw.get("model_type") != "gemma":
        return activation(keys, "hidden_act", default=defaults.active)
    keys.only(hidden_activation=defaults.active)
    hidden_act = keys.text("hidden_act", default=defaults.active)
    return activation_of(defaults.active if hidden_act == "gelu" else hidden_act)


def _rotary(keys: Keys, graph: EncoderGraph, size: int, positions: int) -> Rotary:
    return Rotary.of(graph, frequencies(keys, size, 10_000.0, keys.size("max_position_embeddings", default=positions)))


def _kinds(keys: Keys, defaults: Defaults) -> tuple[str, ...]:
    """Which attention every layer has. Qwen's first layers see everything, where later ones have a window."""
    count = keys.size("num_hidden_layers", default=defaults.layers)
    if defaults.window is None:
        keys.only(sliding_window=None)
        return (FULL,) * count
    if keys.raw.get("model_type") == "mistral":
        return ((SLIDING if keys.raw.get("sliding_window", defaults.window) is not None else FULL),) * count
    first = keys.size("max_window_layers", default=28, least=0)
    slides = keys.boolean("use_sliding_window", default=False) and keys.raw.get("sliding_window", 1) is not None
    return layer_kinds(keys, [SLIDING if slides and number >= first else FULL for number in range(count)])


def _mask(keys: Keys, graph: EncoderGraph, defaults: Defaults, kind: str) -> str:
    keys.only(use_bidirectional_attention=False, **({} if defaults.is_causal else {"is_causal": False}))
    causal = keys.boolean("is_causal", default=defaults.is_causal)
    keys.ignore("sliding_window")
    if kind == FULL:
        return mask(graph, causal=causal)
    if not causal:
        raise NotDefinedError("windows of layers that are not causal are not known")
    assert defaults.window is not None
    return mask(graph, causal=True, before=keys.size("sliding_window", default=defaults.window) - 1)


def _layer(keys: Keys, parts: Tensors, sizes: LayerSizes, defaults: Defaults) -> PreNormLayer:
    if defaults.has_bias is None:
        both = keys.boolean("attention_bias", default=False)
        bias = (both, both)
    else:
        bias = defaults.has_bias
    network = gated_network(parts, sizes, bias=_network_bias(keys))
    return PreNormLayer(
        projections(parts, sizes, bias=bias[0], output_bias=bias[1]),
        Norm.rms(parts, "input_layernorm", sizes.width, sizes.epsilon, plus=defaults.plus),
        network,
        Norm.rms(parts, "post_attention_layernorm", sizes.width, sizes.epsilon, plus=defaults.plus),
    )


def _network_bias(keys: Keys) -> bool:
    """Llama and EuroBERT alone have this entry."""
    return keys.raw.get("model_type") in ("llama", "eurobert") and keys.boolean("mlp_bias", default=False)


def _classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A layer without bias on the last token of a text whose id is not that of padding, as transformers has it."""
    keys, graph = writing.keys, writing.graph
    padding = keys.size("pad_token_id", least=0)
    is_token = graph.op("Not", graph.op("Equal", IDS, padding))
    slot_numbers = graph.op("Mul", graph.op("Cast", is_token, to=7), graph.positions())
    last_index = graph.op("ArgMax", graph.op("Cast", slot_numbers, to=1), axis=1, keepdims=1)
    wide = graph.op("Expand", graph.unsqueeze(last_index, 2), [1, 1, encoded.width])
    row = graph.op("Squeeze", graph.op("GatherElements", encoded.rows, wide, axis=1), [1])
    last = Linear.of(writing.tensors, "score", writing.labels, encoded.width, bias=False)
    return {LOGITS: (last.apply(graph, row), (writing.labels,))}


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A score for every word, by a layer without bias: EuroBERT's."""
    keys, tensors = writing.keys, writing.tensors
    count = keys.size("vocab_size", default=128256)
    is_tied = keys.boolean("tie_word_embeddings", default=False)
    table = own_or_tied(
        tensors, "lm_head.weight", encoded.tensors, "embed_tokens.weight", (count, encoded.width), is_tied=is_tied
    )
    return {LOGITS: (Linear(table, None).apply(writing.graph, encoded.rows), ("sequence", count))}


_CLASSIFIERS: Mapping[str, WriteHead] = {CLASSES: _classes, PAIRS: _classes}


def _definition(
    name: str,
    model_type: str,
    defaults: Defaults,
    code: frozenset[str] = frozenset(),
    heads: Mapping[str, WriteHead] | None = None,
) -> Definition:
    return Definition(
        name,
        of_type(model_type),
        encoder(defaults),
        lambda _: 0,
        {FEATURES: rows, SENTENCES: rows, **(_CLASSIFIERS if heads is None else heads)},
        code,
    )


LLAMA = _definition("Llama", "llama", Defaults(32000, 4096, 11008, 32, 32, 2048))
MISTRAL = _definition(
    "Mistral", "mistral", Defaults(32000, 4096, 14336, 32, 32, 131072, 8, has_bias=(False, False), window=4096)
)
QWEN2 = _definition(
    "Qwen2",
    "qwen2",
    Defaults(151936, 4096, 22016, 32, 32, 32768, 32, has_bias=(True, False), window=4096),
    frozenset({"Qwen2Model"}),
)
QWEN3 = _definition(
    "Qwen3", "qwen3", Defaults(151936, 4096, 22016, 32, 32, 32768, 32, 128, has_key_norms=True, window=4096)
)
GEMMA = _definition(
    "Gemma",
    "gemma",
    Defaults(256000, 3072, 24576, 28, 16, 8192, 16, 256, plus=1.0, scales_words=True, active="gelu_pytorch_tanh"),
)
EUROBERT = _definition(
    "EuroBERT",
    "eurobert",
    Defaults(128256, 768, 3072, 12, 12, 8192, epsilon=1e-5, is_causal=False),
    frozenset({"EuroBertModel"}),
    {MASKED: _mask_head, SPARSE: _mask_head},
)
DECODERS = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, EUROBERT)
