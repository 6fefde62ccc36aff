# SPDX-License-Identifier: Apache-2.0
"""Which shapes are worth a CUDA graph, and which graphs to keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

SEEN_A_GRAPH = 8  # remembered keys without a graph, for every graph that may be kept
IDLE_RUNS_A_GRAPH = 32
"""A full cache gives a graph up when it was not used for this many runs, for every graph that may be kept. A capture
costs as much as hundreds of runs save: where more sizes come than graphs are kept, replacing them would cost more."""

RUNS_A_CAPTURE = 512
"""Sizes that a slightly larger graph serves get one of their own only so many runs after the last capture: it stops a
lane for as long as 10 to 30 runs take."""


class Entry(Protocol):
    """What the cache holds: memory that it takes, and a way to free it."""

    @property
    def size_bytes(self) -> int:
        """Device memory."""

    def close(self) -> None:
        """Frees it."""


KeyT = TypeVar("KeyT", bound=tuple[Any, ...])
KeptT = TypeVar("KeptT", bound=Entry)


class GraphCache(Generic[KeyT, KeptT]):
    """Captured graphs, bounded in number and in memory; the least recently used goes first, and only when it is idle.

    One caller at a time.

    Args:
        max_graphs: how many are kept.
        max_bytes: device memory that they may take.
        min_uses: a key is worth a graph from this use on.
    """

    def __init__(self, max_graphs: int, max_bytes: int, min_uses: int = 2) -> None:
        self._max_graphs = max_graphs
        self._max_bytes = max_bytes
        self._min_uses = min_uses
        self._graphs: OrderedDict[KeyT, KeptT] = OrderedDict()
        self._seen: OrderedDict[KeyT, int] = OrderedDict()  # how often they came; the most recent ones
        self._runs = 0
        self._last_use: dict[KeyT, int] = {}  # the run that used a graph last
        self._last_put = 0
        self._full = False

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def size_bytes(self) -> int:
        """Device memory that all graphs take."""
        return sum(graph.size_bytes for graph in self._graphs.values())

    def get(self, key: KeyT) -> KeptT | None:
        """The graph for this key, which becomes the most recently used. Called once for every run."""
        self._runs += 1
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            self._last_use[key] = self._runs
        return graph

    def get_smallest(self, serves: Callable[[KeyT], bool]) -> tuple[KeyT, KeptT] | None:
        """The graph with the smallest key among those that serve, which becomes the most recently used."""
        key = min(filter(serves, self._graphs), default=None)
        if key is None:
            return None
        self._graphs.move_to_end(key)
        self._last_use[key] = self._runs
        return key, self._graphs[key]

    def returns(self, key: KeyT, *, is_served: bool = False) -> bool:
        """Whether a graph for this key is worth a capture: it was asked for before, and there is room for it.

        `is_served`: by a larger graph, so that there is time.
        """
        if self._full and self._runs - self._last_use[next(iter(self._graphs))] <= IDLE_RUNS_A_GRAPH * self._max_graphs:
            return False  # the least recently used graph is still in use
        self._seen[key] = count = self._seen.get(key, 0) + 1
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN_A_GRAPH * self._max_graphs:
            self._seen.popitem(last=False)
        return count >= self._min_uses and not (is_served and self._runs - self._last_put < RUNS_A_CAPTURE)

    def put(self, key: KeyT, graph: KeptT) -> None:
        """Keeps a graph, and closes the least recently used ones until number and memory are in bounds again."""
        self._graphs[key] = graph
        self._last_use[key] = self._last_put = self._runs
        self._seen.pop(key, None)
        while len(self._graphs) > 1 and (len(self._graphs) > self._max_graphs or self.size_bytes > self._max_bytes):
            oldest, idle = self._graphs.popitem(last=False)
            del self._last_use[oldest]
            idle.close()
            self._full = True
        self._full |= len(self._graphs) == self._max_graphs

    def close(self) -> None:
        """Closes all graphs."""
        while self._graphs:
            self._graphs.popitem()[1].close()
