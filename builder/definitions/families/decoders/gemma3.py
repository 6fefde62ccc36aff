# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 as an encoder (EmbeddingGemma): four norms per layer, windows, norms by 1 + weight (arXiv 2509.20354)."""

from __future__ import annotations

from ...attention import FULL, SLIDING, layer_kinds, mask
from ...blocks import LayerSizes, PreNormLayer
from ...decoder import embed, gated_network, heads_of, projections, rms_norms, write_layers
from ...errors import NotDefinedError
from ...graph import EncoderGraph
from ...heads import ROWS_ALONE
from ...keys import Keys
from ...layers import activation
from ...model import Definition, EncoderRows, Writing, of_type
from ...rotary import Rotary, frequencies_of, parameters_by_kind
from ...tensors import Tensors


def _encode(writing: Writing) -> EncoderRows:
    keys, graph = writing.keys, writing.graph
    keys.only(attn_logit_softcapping=None, final_logit_softcapping=None, is_encoder_decoder=False)
    keys.ignore("tie_word_embeddings", "_sliding_window_pattern")
    sizes = _sizes(keys)
    x = embed(writing, sizes.width, 262_208, is_scaled=True)
    scale, rotary = keys.number("query_pre_attn_scalar", default=256) ** -0.5, _rotary(keys, graph, sizes.heads.size)
    kinds = _kinds(keys)
    scorings = {kind: rotary[kind].scoring(graph, _mask(keys, graph, kind), scale) for kind in sorted(set(kinds))}
    return write_layers(
        writing,
        x,
        sizes,
        [scorings[kind] for kind in kinds],
        lambda parts: _layer(keys, parts, sizes),
        has_norms=True,
        plus=1.0,
    )


def _sizes(keys: Keys) -> LayerSizes:
    width = keys.size("hidden_size", default=2304)
    return LayerSizes(
        width,
        heads_of(keys, width, 8, 4, 256),
        keys.size("intermediate_size", default=9216),
        activation(keys, "hidden_activation", default="gelu_pytorch_tanh"),
        keys.number("rms_norm_eps", default=1e-6),
    )


def _kinds(keys: Keys) -> tuple[str, ...]:
    """Which attention every layer has: every sixth sees everything."""
    count, every = keys.size("num_hidden_layers", default=26), keys.size("sliding_window_pattern", default=6)
    return layer_kinds(keys, [SLIDING if (number + 1) % every else FULL for number in range(count)])


def _rotary(keys: Keys, graph: EncoderGraph, size: int) -> dict[str, Rotary]:
    positions = keys.size("max_position_embeddings", default=131_072)
    bases = {
        FULL: keys.number("rope_theta", default=1_000_000.0),
        SLIDING: keys.number("rope_local_base_freq", default=10_000.0),
    }
    scaling, parameters = keys.inner("rope_scaling"), keys.inner("rope_parameters")
    if scaling is not None and parameters is not None:
        raise NotDefinedError("'rope_scaling' and 'rope_parameters' are both there")
    inner = parameters_by_kind(parameters, bases)
    if scaling is not None:
        inner[FULL] = scaling
    return {kind: Rotary.of(graph, frequencies_of(inner[kind], size, base, positions)) for kind, base in bases.items()}


def _mask(keys: Keys, graph: EncoderGraph, kind: str) -> str:
    """The mask; where both sides are seen, each gets half of the window, which is `sliding_window` tokens in all."""
    both, window = keys.boolean("use_bidirectional_attention", default=False), keys.size("sliding_window", default=4096)
    if kind == FULL:
        return mask(graph, causal=not both)
    return mask(graph, before=window // 2, after=window // 2) if both else mask(graph, causal=True, before=window - 1)


def _layer(keys: Keys, parts: Tensors, sizes: LayerSizes) -> PreNormLayer:
    bias = keys.boolean("attention_bias", default=False)
    names = ("input", "pre_feedforward", "post_attention", "post_feedforward")
    before, before_network, after, after_network = rms_norms(
        parts, sizes, 1.0, *(f"{name}_layernorm" for name in names)
    )
    return PreNormLayer(
        projections(parts, sizes, bias=bias, output_bias=bias),
        before,
        gated_network(parts, sizes),
        before_network,
        after,
        after_network,
    )


GEMMA3 = Definition(
    "Gemma 3",
    of_type("gemma3_text"),
    _encode,
    lambda _: 0,
    ROWS_ALONE,
)
