# SPDX-License-Identifier: Apache-2.0
"""Which shapes are captured, and which graphs are freed."""

from __future__ import annotations

from padfree.runtime.gpu.buckets import Sizes
from padfree.runtime.gpu.graph_cache import IDLE_RUNS_A_GRAPH, SEEN_A_GRAPH, GraphCache


class Graph:
    """Counts how often it was freed."""

    def __init__(self, size_bytes: int = 1) -> None:
        self.size_bytes = size_bytes
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def key(tokens: int) -> Sizes:
    return Sizes(tokens, 1)


def idle(cache: GraphCache[Sizes, Graph], graphs: int) -> None:
    """So many runs of other sizes that a cache for `graphs` graphs may free those that it has."""
    for _ in range(IDLE_RUNS_A_GRAPH * graphs + 1):
        cache.get(key(0))


def put(cache: GraphCache[Sizes, Graph], tokens: int, size_bytes: int = 1) -> Graph:
    """Asks twice and keeps a graph, as a lane does."""
    assert not cache.returns(key(tokens))
    assert cache.returns(key(tokens))
    graph = Graph(size_bytes)
    cache.put(key(tokens), graph)
    return graph


def test_the_least_recently_used_graph_goes_first() -> None:
    cache = GraphCache[Sizes, Graph](2, 100)
    first, second = put(cache, 1), put(cache, 2)
    assert cache.get(key(1)) is first
    idle(cache, 2)
    third = put(cache, 3)
    assert (first.closed, second.closed, third.closed) == (0, 1, 0)
    assert cache.get(key(2)) is None
    assert cache.get(key(1)) is first


def test_a_graph_that_went_is_captured_at_second_sight_again() -> None:
    cache = GraphCache[Sizes, Graph](1, 100)
    for tokens in (1, 2, 1):
        put(cache, tokens)
        idle(cache, 1)
    assert len(cache) == 1


def test_a_full_cache_keeps_graphs_that_are_used() -> None:
    cache = GraphCache[Sizes, Graph](2, 100)
    graphs = [put(cache, tokens) for tokens in (1, 2)]
    for _ in range(3 * IDLE_RUNS_A_GRAPH):  # three sizes take turns
        assert cache.get(key(1)) is graphs[0]
        assert cache.get(key(2)) is graphs[1]
        assert cache.get(key(3)) is None
        assert not cache.returns(key(3))
    idle(cache, 2)
    assert not put(cache, 3).closed
    assert [graph.closed for graph in graphs] == [1, 0]


def test_memory_is_bounded_but_one_graph_may_be_larger() -> None:
    cache = GraphCache[Sizes, Graph](10, 100)
    small = [put(cache, tokens, 40) for tokens in (1, 2)]
    large = put(cache, 3, 90)  # there is room for ten graphs, but not for the memory of these three
    assert [graph.closed for graph in small] == [1, 1]
    assert cache.size_bytes == 90
    assert not cache.returns(key(4))
    idle(cache, 10)
    huge = put(cache, 4, 500)
    assert (large.closed, huge.closed, len(cache)) == (1, 0, 1)


def test_what_came_once_is_forgotten_after_many_others() -> None:
    cache = GraphCache[Sizes, Graph](2, 100)
    assert not cache.returns(key(0))
    for tokens in range(1, 2 * SEEN_A_GRAPH + 1):
        assert not cache.returns(key(tokens))
    assert not cache.returns(key(0))
    assert cache.returns(key(2 * SEEN_A_GRAPH))


def test_closing_frees_every_graph_once() -> None:
    cache = GraphCache[Sizes, Graph](5, 100)
    graphs = [put(cache, tokens) for tokens in (1, 2, 3)]
    cache.close()
    cache.close()
    assert [graph.closed for graph in graphs] == [1, 1, 1]
    assert cache.size_bytes == 0
