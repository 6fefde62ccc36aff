# SPDX-License-Identifier: Apache-2.0
"""The waiting requests as policies see them: sums, and the first in some order, without a look at all of them."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import count
from typing import Generic, TypeVar

from .waiting import Waiting

OrderKey = Callable[[Waiting], float]
"""What an order goes by: the same number for a request every time."""

EntryT = TypeVar("EntryT", bound=Hashable)
SPARE_ENTRIES = 64  # removed entries that a heap may hold before it is built anew


class IndexedLine(Generic[EntryT]):
    """Requests that wait, each known by an entry; the line is kept as they come and go.

    Both take O(log n) for every order, the first k of an order O(k log k), whoever else waits.

    Args:
        orders: name -> key of the orders that will be asked for. A request with the key infinity is not in the order.
    """

    def __init__(self, orders: Mapping[str, OrderKey]) -> None:
        # A dict would scan the gaps that removed requests leave at its front, again and again.
        self._waiting: OrderedDict[EntryT, Waiting] = OrderedDict()
        self._orders = {name: (key, _Order(self._waiting)) for name, key in orders.items()}
        self._arrivals = count()
        self.requests = 0
        self.sequences = 0
        self.tokens = 0

    def __contains__(self, entry: EntryT) -> bool:
        return entry in self._waiting

    def __iter__(self) -> Iterator[EntryT]:
        return iter(self._waiting)

    def keys_of(self, waiting: Waiting) -> Mapping[str, float]:
        """What add needs to know; it may raise what the keys raise."""
        return {name: key(waiting) for name, (key, _) in self._orders.items()}

    def add(self, entry: EntryT, waiting: Waiting, keys: Mapping[str, float]) -> None:
        """Puts a request at the end."""
        self._waiting[entry] = waiting
        self.requests += 1
        self.sequences += waiting.sequences
        self.tokens += waiting.length
        arrival = next(self._arrivals)
        for name, (_, order) in self._orders.items():
            if keys[name] != math.inf:
                order.add(keys[name], arrival, entry)

    def remove(self, entry: EntryT) -> bool:
        """Takes a request out; False where it is not there."""
        waiting = self._waiting.pop(entry, None)
        if waiting is None:
            return False
        self.requests -= 1
        self.sequences -= waiting.sequences
        self.tokens -= waiting.length
        return True

    def in_order(self, order: str | None) -> Iterator[tuple[EntryT, Waiting]]:
        """The requests by a key, the least first, and equal keys by arrival; None: all by arrival.

        The line must not change meanwhile.
        """
        if order is None:
            return iter(self._waiting.items())
        return ((entry, self._waiting[entry]) for entry in self._orders[order][1])

    def least(self, order: str) -> float:
        """The least key in an order; infinity where nobody waits."""
        return self._orders[order][1].least()


class _Order(Generic[EntryT]):
    """A heap of entries, in which those that are gone stay until they come to the top or are too many."""

    def __init__(self, entries: Mapping[EntryT, object]) -> None:
        self._entries = entries
        self._heap: list[tuple[float, int, EntryT]] = []

    def add(self, key: float, arrival: int, entry: EntryT) -> None:
        if len(self._heap) > 2 * len(self._entries) + SPARE_ENTRIES:
            self._heap = [item for item in self._heap if item[2] in self._entries]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (key, arrival, entry))

    def least(self) -> float:
        heap = self._heap
        while heap and heap[0][2] not in self._entries:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def __iter__(self) -> Iterator[EntryT]:
        """The entries in growing order: the heap is a tree, of which a node is visited after the one above it."""
        self.least()
        heap = self._heap
        border: list[tuple[tuple[float, int, EntryT], int]] = [(heap[0], 0)] if heap else []
        while border:
            (_, _, entry), at = heapq.heappop(border)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(border, (heap[below], below))
            if entry in self._entries:
                yield entry
