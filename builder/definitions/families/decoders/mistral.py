# SPDX-License-Identifier: Apache-2.0
"""Mistral: a query sees only a window of the tokens before it (arXiv 2310.06825)."""

from __future__ import annotations

from ...attention import FULL, SLIDING
from ...decoder import Decoder
from ...keys import Keys


def _kinds(keys: Keys, count: int) -> tuple[str, ...]:
    """A window in all layers, unless config.json has null for it."""
    return (FULL if keys.raw.get("sliding_window", 1) is None else SLIDING,) * count


MISTRAL = Decoder(32000, 4096, 14336, 32, 32, 131072, 8, has_bias=(False, False), kinds=_kinds, window=4096).definition(
    "Mistral", "mistral"
)
