# SPDX-License-Identifier: Apache-2.0
"""Attention and its masks, as padded graphs have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .errors import NotDefinedError
from .graph import LOWEST, MASK, EncoderGraph
from .keys import Keys
from .layers import Linear
from .tensors import Tensors
from .unseen import MORE, project, project_out

_BOOL = 9  # TensorProto.BOOL
FULL, SLIDING = "full_attention", "sliding_attention"
"""How much of a sequence layers see, by transformers' names in `layer_types`."""


@dataclass(frozen=True)
class Heads:
    """H heads of queries, G of keys and values, of D numbers each."""

    queries: int
    keys: int
    size: int

    @property
    def width(self) -> int:
        """Columns of all queries of a token."""
        return self.queries * self.size

    @property
    def key_width(self) -> int:
        """Columns of all keys of a token, and of all values."""
        return self.keys * self.size


@dataclass(frozen=True)
class Projections:
    """The linear layers of an attention."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear

    @classmethod
    def of(cls, tensors: Tensors, names: Iterable[str], width: int) -> Projections:
        """Layers of these names for queries, keys, values and the output, all of one width."""
        return cls(*(Linear.of(tensors, name, width, width) for name in names))

    @classmethod
    def from_fused(
        cls, tensors: Tensors, name: str, output: str, heads: Heads, width: int, *, bias: bool
    ) -> Projections:
        """One layer that has the rows of queries, keys and values, in this order, and the output's."""
        sizes = (heads.width, heads.key_width, heads.key_width)
        query, key, value = Linear.of(tensors, name, sum(sizes), width, bias=bias).split(*sizes)
        return cls(query, key, value, Linear.of(tensors, output, width, heads.width, bias=bias))


Rotate = Callable[[str], str]
"""Makes of queries or keys [B, H, S, D] those that scores are computed from."""


@dataclass(frozen=True)
class Scoring:
    """How scores are made.

    Attributes:
        scale: of the products of queries and keys.
        mask: what is added to scores, [B, 1, 1, S] or [B, 1, S, S]: 0, or the lowest number where keys are not seen.
        bias: what is also added to scores, [1, H, S, S]; "" for nothing.
        rotate_queries, rotate_keys: norms of heads and rotary embeddings.
        more: computes another term [B, H, S, S] from queries and keys.
    """

    scale: float
    mask: str
    bias: str = ""
    rotate_queries: Rotate = lambda x: x
    rotate_keys: Rotate = lambda x: x
    more: Callable[[str, str], str] | None = None


def attention(graph: EncoderGraph, x: str, layers: Projections, heads: Heads, scoring: Scoring) -> str:
    """The attention of x [B, S, E], through its output layer."""
    parts = (layers.query, layers.key, layers.value)
    with graph.scope("attention"):
        if graph.unseen is None:
            queries, keys, values = (layer.apply(graph, x) for layer in parts)
        else:
            queries, keys, values = project(graph, x, parts, heads.queries, heads.size)
            heads = replace(heads, size=heads.size + MORE)
        q = scoring.rotate_queries(split_heads(graph, queries, heads.queries, heads.size))
        k = scoring.rotate_keys(split_heads(graph, keys, heads.keys, heads.size))
        v = split_heads(graph, values, heads.keys, heads.size)
        k, v = (_repeat(graph, item, heads) for item in (k, v))
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = graph.op("Mul", scores, graph.constant(scoring.scale)) if scoring.scale != 1 else scores
        more = "" if scoring.more is None else scoring.more(q, k)
        for term in (more, scoring.bias, scoring.mask):
            scores = graph.op("Add", scores, term) if term else scores
        context = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        rows = graph.op("Transpose", context, perm=[0, 2, 1, 3])
        rows = graph.reshape(rows, 0, 0, heads.width)
        if graph.unseen is None:
            return layers.output.apply(graph, rows)
        return project_out(graph, rows, layers.output, heads.size - MORE)


def split_heads(graph: EncoderGraph, x: str, count: int, size: int) -> str:
    """[B, S, H * D] as [B, H, S, D]."""
    return graph.op("Transpose", graph.reshape(x, 0, 0, count, size), perm=[0, 2, 1, 3])


def _repeat(graph: EncoderGraph, x: str, heads: Heads) -> str:
    """Keys or values [B, G, S, D] as [B, H, S, D]: each for all queries of its group."""
    group = heads.queries // heads.keys
    if group == 1:
        return x
    wide = graph.op("Expand", graph.unsqueeze(x, 2), [1, 1, group, 1, 1])
    return graph.reshape(wide, 0, heads.queries, -1, heads.size)


def mask(graph: EncoderGraph, *, causal: bool = False, before: int | None = None, after: int | None = None) -> str:
    """0 where a key is seen, else the lowest number: [B, 1, 1, S], or [B, 1, S, S] where distance has limits.

    Args:
        graph: what gets the nodes.
        causal: whether keys after the query are not seen.
        before: the furthest key before the query that is seen; None for all.
        after: the furthest after it.
    """
    seen = graph.op("Cast", graph.unsqueeze(MASK, 1, 2), to=_BOOL)
    after = 0 if causal else after
    if before is not None or after is not None:
        distance = distances(graph)
        if before is not None:
            near = graph.op("GreaterOrEqual", distance, -before)
            seen = graph.op("And", seen, near)
        if after is not None:
            seen = graph.op("And", seen, graph.op("LessOrEqual", distance, after))
    return graph.op("Where", seen, 0.0, LOWEST)


def layer_kinds(keys: Keys, default: Sequence[str]) -> tuple[str, ...]:
    """What every layer sees: `layer_types`, or the default with an entry per layer.

    Raises:
        NotDefinedError: there are more or fewer than layers, or others than FULL and SLIDING.
    """
    kinds = keys.texts("layer_types", default)
    if len(kinds) != len(default) or not {FULL, SLIDING}.issuperset(kinds):
        raise NotDefinedError(f"'layer_types' are not {len(default)} of {FULL} and {SLIDING}")
    return kinds


def distances(graph: EncoderGraph) -> str:
    """How far every key is after every query: [S, S], negative before it."""
    positions = graph.positions()
    keys, queries = (graph.unsqueeze(positions, axis) for axis in (0, 1))
    return graph.op("Sub", keys, queries)
