# SPDX-License-Identifier: Apache-2.0
"""The passes: each takes a graph of its own, matches, checks with reasons, replaces, and says what it did."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from .attention import attention
from .base import Miss, PassResult
from .embedding import embedding
from .interface import packed_interface
from .layer_norm import layer_norm
from .pack import KEPT_MASKING, packing
from .pooling import pooling
from .simplify import simplify

Pass = Callable[[gs.Graph], PassResult]

__all__ = ["KEPT_MASKING", "Miss", "Pass", "PassResult", "pipeline"]


def pipeline(interface: str, keep: str) -> tuple[Pass, ...]:
    """The passes for an engine interface ("packed" or "padded"), in order; `keep` is one of KEPT_MASKING."""
    padded = interface == "padded"
    passes = (simplify, attention, embedding(padded), pooling, packing(keep), layer_norm)
    return passes if padded else (*passes, packed_interface)
