# SPDX-License-Identifier: Apache-2.0
"""Gemma: scaled embeddings, norms by 1 + weight, and GELU (arXiv 2403.08295)."""

from __future__ import annotations

from ...decoder import Decoder
from ...keys import Keys
from ...layers import Activation, activation_of

_GELU = "gelu_pytorch_tanh"


def _active(keys: Keys) -> Activation:
    """The activation; the first files say "gelu" and mean its approximation."""
    keys.only(hidden_activation=_GELU)
    name = keys.text("hidden_act", default=_GELU)
    return activation_of(_GELU if name == "gelu" else name)


GEMMA = Decoder(256000, 3072, 24576, 28, 16, 8192, 16, 256, plus=1.0, scales_words=True, active=_active).definition(
    "Gemma", "gemma"
)
