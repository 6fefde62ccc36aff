# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 as an encoder (EmbeddingGemma): four norms per layer, windows, norms by 1 + weight (arXiv 2509.20354)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...attention import FULL, SLIDING, Scoring, layer_kinds, mask
from ...decoder import Decoder
from ...errors import NotDefinedError
from ...graph import EncoderGraph
from ...keys import Keys
from ...layers import activation
from ...rotary import Rotary, frequencies_of, parameters_by_kind


@dataclass(frozen=True)
class _Gemma3(Decoder):
    """Decoders whose windows have rotations of their own, and whose queries may see both sides."""

    def scorings(
        self, keys: Keys, graph: EncoderGraph, kinds: Sequence[str], size: int, positions: int
    ) -> Mapping[str, Scoring]:
        """By kind of attention, with the scale that config.json gives."""
        keys.only(attn_logit_softcapping=None, final_logit_softcapping=None)
        scale, rotary = keys.number("query_pre_attn_scalar", default=256) ** -0.5, _rotary(keys, graph, size, positions)
        return {
            kind: rotary[kind].scoring(graph, _mask(keys, graph, kind, self.window), scale)
            for kind in sorted(set(kinds))
        }


def _rotary(keys: Keys, graph: EncoderGraph, size: int, positions: int) -> dict[str, Rotary]:
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


def _mask(keys: Keys, graph: EncoderGraph, kind: str, window: int | None) -> str:
    """The mask; where both sides are seen, each gets half of the window, which is `sliding_window` tokens in all."""
    both = keys.boolean("use_bidirectional_attention", default=False)
    width = keys.size("sliding_window", default=window)
    if kind == FULL:
        return mask(graph, causal=not both)
    return mask(graph, before=width // 2, after=width // 2) if both else mask(graph, causal=True, before=width - 1)


def _kinds(keys: Keys, count: int) -> tuple[str, ...]:
    """Which attention every layer has: every sixth sees everything."""
    keys.ignore("_sliding_window_pattern")
    every = keys.size("sliding_window_pattern", default=6)
    return layer_kinds(keys, [SLIDING if (number + 1) % every else FULL for number in range(count)])


GEMMA3 = _Gemma3(
    262_208,
    2304,
    9216,
    26,
    8,
    131_072,
    4,
    256,
    has_key_norms=True,
    kinds=_kinds,
    window=4096,
    plus=1.0,
    scales_words=True,
    active=lambda keys: activation(keys, "hidden_activation", default="gelu_pytorch_tanh"),
    norms=("input", "pre_feedforward", "post_attention", "post_feedforward"),
).definition("Gemma 3", "gemma3_text", {})
