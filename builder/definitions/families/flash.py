# SPDX-License-Identifier: Apache-2.0
"""What nomic BERT, GTE and Jina v3 share: BERT's layers with rotary embeddings and fused projections."""

from __future__ import annotations

from collections.abc import Iterable

from ..attention import Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, apply_layers
from ..model import Writing
from ..rotary import Frequencies, Rotary


def rotary_layers(
    writing: Writing, x: str, sizes: LayerSizes, frequencies: Frequencies, layers: Iterable[PostNormLayer]
) -> str:
    """Layers of x [B, S, E] whose queries and keys are rotated."""
    graph, rotary = writing.graph, Rotary.of(writing.graph, frequencies)

    def rotate(heads: str) -> str:
        return rotary.rotate(graph, heads)

    scoring = Scoring(sizes.heads.size**-0.5, mask(graph), rotate_queries=rotate, rotate_keys=rotate)
    return apply_layers(graph, x, layers, sizes.heads, scoring)
