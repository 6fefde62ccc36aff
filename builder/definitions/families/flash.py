# SPDX-License-Identifier: Apache-2.0
"""What nomic BERT, GTE and Jina v3 share: BERT's layers with rotary embeddings and fused projections."""

from __future__ import annotations

from collections.abc import Callable

from ..attention import Scoring, mask
from ..blocks import LayerSizes, PostNormLayer
from ..layers import Norm, add, types, words
from ..model import Writing
from ..rotary import Frequencies, Rotary
from ..tensors import Tensors


def embed(writing: Writing, tensors: Tensors, norm: str, sizes: LayerSizes, vocabulary: int, kinds: int) -> str:
    """Word embeddings, those of token types where there are any, and a norm: [B, S, E]."""
    graph = writing.graph
    with graph.scope("embeddings"):
        x = words(graph, tensors.take("embeddings.word_embeddings.weight", vocabulary, sizes.width))
        if kinds:
            table = tensors.take("embeddings.token_type_embeddings.weight", kinds, sizes.width)
            x = add(graph, x, types(graph, table))
        return Norm.of(tensors, norm, sizes.width, sizes.epsilon).apply(graph, x)


def rotary_layers(
    writing: Writing,
    x: str,
    sizes: LayerSizes,
    frequencies: Frequencies,
    count: int,
    layer: Callable[[int], PostNormLayer],
) -> str:
    """Layers of x [B, S, E] whose queries and keys are rotated."""
    graph, rotary = writing.graph, Rotary.of(writing.graph, frequencies)

    def rotate(heads: str) -> str:
        return rotary.rotate(graph, heads)

    scoring = Scoring(sizes.heads.size**-0.5, mask(graph), rotate_queries=rotate, rotate_keys=rotate)
    for number in range(count):
        with graph.scope(f"layer.{number}"):
            x = layer(number).apply(graph, x, sizes.heads, scoring)
    return x
