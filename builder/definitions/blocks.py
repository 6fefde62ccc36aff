# SPDX-License-Identifier: Apache-2.0
"""Whole layers, which encoders repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .attention import Heads, Projections, Scoring, attention
from .errors import NotDefinedError
from .graph import EncoderGraph
from .layers import Activation, FeedForward, Norm


@dataclass(frozen=True)
class LayerSizes:
    """What all layers of an encoder have in common.

    Attributes:
        width: E.
        heads: of the attention.
        inner: width of the feed-forward network.
        active: its activation.
        epsilon: of the norms.
    """

    width: int
    heads: Heads
    inner: int
    active: Activation
    epsilon: float


def even_heads(width: int, count: int, keys: int | None = None) -> Heads:
    """Heads that share the width evenly.

    Raises:
        NotDefinedError: they cannot.
    """
    if width % count:
        raise NotDefinedError(f"the hidden size {width} is no multiple of its {count} heads")
    return Heads(count, keys or count, width // count)


class Network(Protocol):
    """A feed-forward network, or a mixture of several."""

    def apply(self, graph: EncoderGraph, x: str) -> str:
        """The network of x [B, S, E]."""
        ...


@dataclass(frozen=True)
class PostNormLayer:
    """norm(y + feed_forward(y)) with y = attention_norm(x + attention(x))."""

    attention: Projections
    attention_norm: Norm
    feed_forward: Network
    norm: Norm

    def apply(self, graph: EncoderGraph, x: str, heads: Heads, scoring: Scoring) -> str:
        """The layer of x [B, S, E]."""
        update = attention(graph, x, self.attention, heads, scoring)
        x = self.attention_norm.apply(graph, graph.op("Add", update, x))
        return self.norm.apply(graph, graph.op("Add", self.feed_forward.apply(graph, x), x))


@dataclass(frozen=True)
class PreNormLayer:
    """y + feed_forward(feed_forward_norm(y)) with y = x + attention(attention_norm(x)).

    Gemma has norms after attention and feed-forward network, too; ModernBERT's first layer has none ahead of its
    attention.
    """

    attention: Projections
    attention_norm: Norm | None
    feed_forward: FeedForward
    feed_forward_norm: Norm
    after_attention: Norm | None = None
    after_feed_forward: Norm | None = None

    def apply(self, graph: EncoderGraph, x: str, heads: Heads, scoring: Scoring) -> str:
        """The layer of x [B, S, E]."""
        update = attention(graph, _norm(graph, self.attention_norm, x), self.attention, heads, scoring)
        x = graph.op("Add", x, _norm(graph, self.after_attention, update))
        update = self.feed_forward.apply(graph, self.feed_forward_norm.apply(graph, x))
        return graph.op("Add", x, _norm(graph, self.after_feed_forward, update))


def _norm(graph: EncoderGraph, norm: Norm | None, x: str) -> str:
    return x if norm is None else norm.apply(graph, x)
