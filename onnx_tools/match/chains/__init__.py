# SPDX-License-Identifier: Apache-2.0
"""Chains of nodes, told by what they compute: heads, rotary embeddings, norms, activations, GEMMs."""

from .activation import find_activation
from .bounds import before_bounds
from .gemms import added_bias, is_of_first_tokens
from .heads import HEADS_FIRST, KEYS_LAST, TOKENS_FIRST, HeadsSource, follow_context, scale_of, trace_heads
from .rotary import Rotation, Rotations
from .softmaxes import VIEWS, is_mask, reduction_of
from .views import is_square, square_source

__all__ = [
    "HEADS_FIRST",
    "KEYS_LAST",
    "TOKENS_FIRST",
    "VIEWS",
    "HeadsSource",
    "Rotation",
    "Rotations",
    "added_bias",
    "before_bounds",
    "find_activation",
    "follow_context",
    "is_mask",
    "is_of_first_tokens",
    "is_square",
    "reduction_of",
    "scale_of",
    "square_source",
    "trace_heads",
]
