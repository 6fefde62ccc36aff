# SPDX-License-Identifier: Apache-2.0
"""Whole layers, which encoders repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .attention import Heads, Projections, Scoring, attention
from .errors import NotDefinedError
from .graph import EncoderGraph
from .layers import Activation, FeedForward, Linear, Norm
from .tensors import Tensors


@dataclass(frozen=True)
class LayerSizes:
    """What all layers of an encoder have in common.

    Attributes:
        width: E.
        heads: attention heads and their size.
        inner: width of the feed-forward network.
        active: its activation.
        epsilon: the norms'.
    """

    width: int
    heads: Heads
    inner: int
    active: Activation
    epsilon: float


def even_heads(width: int, count: int) -> Heads:
    """Heads that share the width evenly.

    Raises:
        NotDefinedError: they cannot.
    """
    if width % count:
        raise NotDefinedError(f"the hidden size {width} is no multiple of its {count} heads")
    return Heads(count, count, width // count)


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


def post_norm_layer(
    parts: Tensors, sizes: LayerSizes, attention: Projections, network: Network, norms: tuple[str, str]
) -> PostNormLayer:
    """A layer with norms of these names: one after the attention, one after the network."""
    first, second = (Norm.of(parts, name, sizes.width, sizes.epsilon) for name in norms)
    return PostNormLayer(attention, first, network, second)


def plain_network(parts: Tensors, sizes: LayerSizes, up: str, down: str) -> FeedForward:
    """A network of two linear layers of these names, without a gate."""
    first = Linear.of(parts, up, sizes.inner, sizes.width)
    return FeedForward(first, sizes.active, Linear.of(parts, down, sizes.width, sizes.inner))


def gated_network(
    parts: Tensors, sizes: LayerSizes, both: str, down: str, *, bias: bool, down_bias: bool, gate: int = 0
) -> FeedForward:
    """A network with a gate, whose rows and those of the layer up are one layer; `gate` is 0 or 1: its half of them."""
    halves = Linear.of(parts, both, 2 * sizes.inner, sizes.width, bias=bias).split(sizes.inner, sizes.inner)
    last = Linear.of(parts, down, sizes.width, sizes.inner, bias=down_bias)
    return FeedForward(halves[1 - gate], sizes.active, last, halves[gate])


def plain_layer(
    parts: Tensors, sizes: LayerSizes, attention: Projections, network: tuple[str, str], norms: tuple[str, str]
) -> PostNormLayer:
    """A layer with a network of two linear layers and two norms of these names."""
    return post_norm_layer(parts, sizes, attention, plain_network(parts, sizes, *network), norms)


def layers_of(
    tensors: Tensors, stem: str, member: str, count: int, layer: Callable[[Tensors], PostNormLayer]
) -> Iterator[PostNormLayer]:
    """Yields `count` layers, each made from the tensors named STEM.NUMBER.NAME, one of which is `member`."""
    for number in range(count):
        yield layer(tensors.below(f"{stem}.{number}.", member=member))


def apply_layers(graph: EncoderGraph, x: str, layers: Iterable[PostNormLayer], heads: Heads, scoring: Scoring) -> str:
    """Layers of x [B, S, E], one after the other."""
    for number, layer in enumerate(layers):
        with graph.scope(f"layer.{number}"):
            x = layer.apply(graph, x, heads, scoring)
    return x


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
