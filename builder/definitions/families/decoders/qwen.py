# SPDX-License-Identifier: Apache-2.0
"""Qwen 2 and 3, which has norms of heads where 2 has biases: later layers may have a window (arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import replace

from ...attention import FULL, SLIDING, layer_kinds
from ...decoder import Decoder
from ...keys import Keys


def _kinds(keys: Keys, count: int) -> tuple[str, ...]:
    """Which attention every layer has: the first see everything, where later ones have a window."""
    first = keys.size("max_window_layers", default=28, least=0)
    slides = keys.boolean("use_sliding_window", default=False) and keys.raw.get("sliding_window", 1) is not None
    return layer_kinds(keys, [SLIDING if slides and number >= first else FULL for number in range(count)])


_QWEN2 = Decoder(151936, 4096, 22016, 32, 32, 32768, 32, has_bias=(True, False), kinds=_kinds, window=4096)
_QWEN3 = replace(_QWEN2, head_size=128, has_bias=None, has_key_norms=True)
QWEN2 = _QWEN2.definition("Qwen2", "qwen2", code=frozenset({"Qwen2Model"}))
QWEN3 = _QWEN3.definition("Qwen3", "qwen3")
