# SPDX-License-Identifier: Apache-2.0
"""Which shapes are worth a CUDA graph, and which graphs to keep."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from .buckets import Sizes

SEEN_A_GRAPH = 8  # remembered shapes that ran once, for every graph that may be kept


class Kept(Protocol):
    """What the cache holds: memory that it takes, and a way to free it."""

    @property
    def size_bytes(self) -> int:
        """Device memory."""

    def close(self) -> None:
        """Frees it."""


KeptT = TypeVar("KeptT", bound=Kept)


class GraphCache(Generic[KeptT]):
    """Captured graphs, bounded in number and in memory; the least recently used goes first. One caller at a time."""

    def __init__(self, max_graphs: int, max_bytes: int) -> None:
        self._max_graphs = max_graphs
        self._max_bytes = max_bytes
        self._graphs: OrderedDict[Sizes, KeptT] = OrderedDict()
        self._seen: OrderedDict[Sizes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def size_bytes(self) -> int:
        """Device memory that all graphs take."""
        return sum(kept.size_bytes for kept in self._graphs.values())

    def get(self, key: Sizes) -> KeptT | None:
        """The graph for these sizes, which becomes the most recently used."""
        kept = self._graphs.get(key)
        if kept is not None:
            self._graphs.move_to_end(key)
        return kept

    def returns(self, key: Sizes) -> bool:
        """Whether these sizes were asked for before: what comes once is not worth a capture."""
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > SEEN_A_GRAPH * self._max_graphs:
            self._seen.popitem(last=False)
        return False

    def put(self, key: Sizes, kept: KeptT) -> None:
        """Keeps a graph, and closes the least recently used ones until number and memory are in bounds again."""
        self._graphs[key] = kept
        del self._seen[key]
        while len(self._graphs) > 1 and (len(self._graphs) > self._max_graphs or self.size_bytes > self._max_bytes):
            self._graphs.popitem(last=False)[1].close()

    def close(self) -> None:
        """Closes all graphs."""
        while self._graphs:
            self._graphs.popitem()[1].close()
