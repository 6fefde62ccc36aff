# SPDX-License-Identifier: Apache-2.0
"""What nomic BERT, GTE and Jina v3 share: BERT's layers with rotary embeddings and fused projections."""

from __future__ import annotations

from ..attention import Scoring, mask
from ..blocks import LayerSizes
from ..model import Writing
from ..rotary import Frequencies, Rotary


def rotary_scoring(writing: Writing, sizes: LayerSizes, frequencies: Frequencies) -> Scoring:
    """Scores of queries and keys that are rotated."""
    graph, rotary = writing.graph, Rotary.of(writing.graph, frequencies)

    def rotate(heads: str) -> str:
        return rotary.rotate(graph, heads)

    return Scoring(sizes.heads.size**-0.5, mask(graph), rotate_queries=rotate, rotate_keys=rotate)
