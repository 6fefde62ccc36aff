# SPDX-License-Identifier: Apache-2.0
"""The policies: first come first served, shares of the queue for all clients, and the cheapest cut of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from padfree.runtime.errors import SessionError

from ..budget import Budget
from .costs import CostTable
from .line import EntryT, IndexedLine, OrderKey
from .partition import partition
from .policy import TURN, LinePolicy, first_run, in_time
from .waiting import Waiting


@dataclass(frozen=True)
class FirstCome(LinePolicy):
    """First come first served: as many requests as the budget takes.

    With a token budget this is what packed engines want: they compute no padding, whatever the lengths. With a budget
    that counts padding it is the dynamic batching of most servers; with one of a single sequence, no batching.

    Attributes:
        budget: what a run takes; `Session.budget`, or less.
        max_delay_s: how long a request waits for others to share its run; 0 starts whenever a run can start.
        patience_s: None keeps to the order of arrival; a number serves what is due first (`by_due`).
        costs: lets requests that would miss their deadline be refused, and keeps runs short enough for those in it.
    """

    budget: Budget
    max_delay_s: float = 0.0
    patience_s: float | None = None
    costs: CostTable | None = None

    takes_groups: ClassVar[bool] = True

    def first(self, line: IndexedLine[EntryT]) -> list[tuple[EntryT, Waiting]]:
        """The first requests that fit the budget."""
        return first_run(self.by_due(line), self.budget)


@dataclass(frozen=True)
class FairShare(LinePolicy):
    """Every client gets as many tokens as any other while it waits, whatever each has in the queue (`turns`).

    However many clients have long queues, a short request of a client that has nothing else waiting is in the next
    run. Requests of one client run in the order of arrival, and where nobody names a client (`Batcher.submit`), all do,
    as under FirstCome.

    Attributes:
        budget: what a run takes; no run should last longer than a short request may wait.
        max_delay_s: how long a request waits for others to share its run; 0 starts whenever a run can start.
        costs: as for FirstCome.
    """

    budget: Budget
    max_delay_s: float = 0.0
    costs: CostTable | None = None

    takes_groups: ClassVar[bool] = True

    @property
    def orders(self) -> Mapping[str, OrderKey]:
        """The order of turns, and until when requests wait for others, where that is asked for."""
        return {**super().orders, TURN: lambda request: request.turn}

    def first(self, line: IndexedLine[EntryT]) -> list[tuple[EntryT, Waiting]]:
        """The requests whose turn is next, as many as fit the budget."""
        return first_run(line.in_order(TURN), self.budget)


@dataclass(frozen=True)
class CheapestCut(LinePolicy):
    """TurboTransformers' scheduler: the queue is cut into runs that take the least time in all, by `partition`.

    The run that holds what is due first is the next; the rest is cut anew, with what comes meanwhile.

    Attributes:
        costs: what runs cost.
        budget: what a run takes; `Session.budget`, or less.
        max_delay_s: how long a request waits for others to share its run; 0 starts whenever a run can start.
        patience_s: None serves the oldest request first; a number what is due first (`by_due`).
        window: requests that are looked at, the first in that order: bounds the time of a decision.
    """

    costs: CostTable
    budget: Budget
    max_delay_s: float = 0.0
    patience_s: float | None = None
    window: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise SessionError(f"window is {self.window}, allowed: 1 or more; leave it out for 512")

    def first(self, line: IndexedLine[EntryT]) -> list[tuple[EntryT, Waiting]]:
        """The first requests, as many as the window holds."""
        return list(islice(self.by_due(line), self.window))

    def pick(self, seen: Sequence[Waiting], now_s: float) -> Sequence[int]:
        """The run of the cheapest cut that holds the request that is due first."""
        runs = partition([request.length for request in seen], self.costs, self.budget)
        first = next(run for run in runs if 0 in run)
        return in_time(sorted(first), seen, self.costs, now_s)
