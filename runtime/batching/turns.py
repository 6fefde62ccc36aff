# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is when clients share a queue: every one gets as many tokens as the others while it waits.

This is weighted fair queueing (Demers, Keshav and Shenker, 1989), with tokens instead of bits. A clock counts the
tokens that each share of the queue has had. A request's turn is the clock's time at which it would be done if all
clients were served at once, token by token; who has the earliest turn goes first. So a short request of somebody who
has nothing else in the queue passes all that others have there, however many they are. Parts of one request have one
turn: large requests are finished one after the other, not all of them late, and none is begun long before its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from .waiting import Waiting

SPARE_CLIENTS = 64
"""Clients without a request that are remembered before it is worth forgetting them."""


class Turns:
    """The clock, and what each client has had. Callers hold a lock."""

    def __init__(self) -> None:
        self._clock = 0.0
        self._ends: dict[Hashable, float] = {}  # the turn of each client's last request
        self._waiting: Counter[Hashable] = Counter()
        self._tokens: Counter[Hashable] = Counter()  # tokens that wait
        self._shares: dict[Hashable, int] = {}
        self._all_shares = 0

    def is_modest(self, request: Waiting, tokens: int, room: float) -> bool:
        """Whether a client, with a request of so many tokens, uses no more than half of its share of the room."""
        shares = self._all_shares + (0 if request.client in self._shares else request.shares)
        return self._tokens[request.client] + tokens <= room * request.shares / (2 * shares)

    def join(self, parts: Sequence[Waiting]) -> float:
        """The turn of the parts of one request, which begin to wait: the earliest goes first."""
        client, shares = parts[0].client, parts[0].shares
        if not self._waiting[client]:
            self._shares[client] = shares
            self._all_shares += shares
        self._waiting[client] += len(parts)
        tokens = sum(part.length for part in parts)
        self._tokens[client] += tokens
        end = max(self._clock, self._ends.get(client, 0.0)) + tokens / self._shares[client]
        self._ends[client] = end
        return end

    def run(self, client: Hashable, tokens: int) -> None:
        """A request leaves the queue to be run."""
        self._clock += tokens / self._all_shares
        self._leave(client, tokens)
        if not self._waiting:
            self._ends.clear()  # nobody is ahead of anybody
        elif len(self._ends) > 2 * len(self._waiting) + SPARE_CLIENTS:
            self._ends = {one: end for one, end in self._ends.items() if end > self._clock or one in self._waiting}

    def discard(self, client: Hashable, tokens: int) -> None:
        """A request leaves the queue and is not run: its client has not had these tokens."""
        self._ends[client] -= tokens / self._shares[client]
        self._leave(client, tokens)
        if not self._waiting:
            self._ends.clear()

    def _leave(self, client: Hashable, tokens: int) -> None:
        self._waiting[client] -= 1
        self._tokens[client] -= tokens
        if not self._waiting[client]:
            del self._waiting[client], self._tokens[client]
            self._all_shares -= self._shares.pop(client)
