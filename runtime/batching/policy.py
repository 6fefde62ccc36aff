# SPDX-License-Identifier: Apache-2.0
"""What a batching policy sees and says, and the rules that all policies share."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from ..budget import Budget
from ..errors import SessionError
from .costs import CostTable
from .line import EntryT, IndexedLine, OrderKey
from .partition import check_alike
from .waiting import Beginning, Waiting

DUE, START, LONGEST, TURN = "due", "start", "longest", "turn"
"""Orders of requests, see LinePolicy.orders."""


class Decision(NamedTuple):
    """What to do now.

    Attributes:
        run: indexes of the requests that make up the next run; none: nothing runs yet.
        wake_s: when to ask again if nothing runs and no request comes before.
    """

    run: Sequence[int]
    wake_s: float = math.inf


class Policy(Protocol):
    """Chooses the next run. Many threads may ask at once: it keeps no state.

    Times are seconds of one clock, whichever. A policy with an attribute `takes_groups` that is true gets requests of
    several sequences too, which stay together.
    """

    @property
    def costs(self) -> CostTable | None:
        """What runs cost; None where nobody measured it, and then a run is taken to last no time."""

    def decide(self, waiting: Sequence[Waiting], now_s: float) -> Decision:
        """The next run out of what waits: one request or more, in the order of arrival."""


class LinePolicy:
    """A policy that does not look at every request that waits, so that its time does not grow with the queue.

    `orders` names the orders that it needs. `look` takes the first requests in these orders, by `first`, while the
    queue is locked; `pick` chooses a run among them after that. `decide` does both on a list.

    Attributes:
        budget: what a run takes.
        costs: what runs cost; None where nobody measured it.
        max_delay_s: how long a request waits for others to share its run.
        patience_s: None keeps to the order of arrival; a number serves what is due first (`by_due`).
    """

    budget: Budget
    costs: CostTable | None
    max_delay_s: float
    patience_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_delay_s", "patience_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise SessionError(f"{name} is {value}, allowed: 0 or more; pass seconds")
        if self.costs is not None:
            check_alike(self.costs, self.budget)

    @property
    def orders(self) -> Mapping[str, OrderKey]:
        """When requests are due, and until when they wait for others, where that is asked for.

        DUE: a request is due at its deadline, or `patience_s` after its arrival if that is sooner, so that none waits
        forever for more urgent ones. START: when a request has waited long enough for others, which is `max_delay_s`,
        or half of the slack that a deadline leaves. LONGEST: the longest sequence first.
        """
        orders: dict[str, OrderKey] = {}
        if (patience_s := self.patience_s) is not None:
            orders[DUE] = lambda request: min(request.deadline_s, request.arrived_s + patience_s)
        if self.max_delay_s:

            def start(request: Waiting) -> float:
                slack_s = max(0.0, latest_start_s(request, self.costs) - request.arrived_s)
                return request.arrived_s + min(self.max_delay_s, slack_s / 2)

            orders[START] = start
            orders[LONGEST] = lambda request: -(request.longest if request.sequences > 1 else request.length)
        return orders

    def look(self, line: IndexedLine[EntryT], now_s: float) -> tuple[list[tuple[EntryT, Waiting]], float]:
        """The requests among which the next run is chosen; and, if there are none, when to ask again.

        A run starts at once if no more would fit, or when a request has waited long enough for others.
        """
        start_s = -math.inf
        if self.max_delay_s and self.budget.takes(line.sequences + 1, line.tokens, int(-line.least(LONGEST))):
            start_s = line.least(START)
        return ([], start_s) if start_s > now_s else (self.first(line), start_s)

    def by_due(self, line: IndexedLine[EntryT]) -> Iterator[tuple[EntryT, Waiting]]:
        """Requests in the order in which they are due; without patience the order is that of arrival."""
        return line.in_order(None if self.patience_s is None else DUE)

    def first(self, line: IndexedLine[EntryT]) -> list[tuple[EntryT, Waiting]]:
        """The requests among which a run that starts now is chosen."""
        raise NotImplementedError

    def pick(self, seen: Sequence[Waiting], now_s: float) -> Sequence[int]:
        """The next run out of those that were looked at: indexes, one or more; all, as far as deadlines allow."""
        return in_time(range(len(seen)), seen, self.costs, now_s)

    def decide(self, waiting: Sequence[Waiting], now_s: float) -> Decision:
        """The next run out of what waits."""
        line = IndexedLine[int](self.orders)
        for at, request in enumerate(waiting):
            line.add(at, request, line.keys_of(request))
        seen, wake_s = self.look(line, now_s)
        if not seen:
            return Decision((), wake_s)
        return Decision([seen[at][0] for at in self.pick([request for _, request in seen], now_s)])


def latest_start_s(request: Waiting, costs: CostTable | None) -> float:
    """When the request has to start at the latest, alone in its run, to meet its deadline."""
    if request.deadline_s == math.inf or costs is None:
        return request.deadline_s
    return request.deadline_s - costs.alone_seconds(request.length)


def first_run(waiting: Iterable[tuple[EntryT, Waiting]], budget: Budget) -> list[tuple[EntryT, Waiting]]:
    """The first requests that make one run: as many as the budget takes, at least one.

    What requests begin with counts once, and is a sequence more, where the model shares it.
    """
    run: list[tuple[EntryT, Waiting]] = []
    sequences = tokens = most = 0
    beginnings: set[Beginning] = set()
    takes = budget.takes
    for item in waiting:
        length, _, _, count, of_longest, *_, beginning = item[1]
        sequences += count
        tokens += length
        if beginning is not None:
            if beginning in beginnings:
                tokens -= beginning.length
            else:
                beginnings.add(beginning)
                sequences += 1
        if count > 1:
            length = of_longest
        if length > most:
            most = length
        if run and not takes(sequences, tokens, most):
            break
        run.append(item)
    return run


def in_time(run: Sequence[int], waiting: Sequence[Waiting], costs: CostTable | None, now_s: float) -> Sequence[int]:
    """The first requests of a run, at least one, that all meet their deadlines when they run together now."""
    if costs is None or all(waiting[at].deadline_s == math.inf for at in run):
        return run
    soonest = list(accumulate((waiting[at].deadline_s for at in run), min))

    def late(count: int) -> bool:
        return now_s + costs.run_seconds([waiting[at].length for at in run[:count]]) > soonest[count - 1]

    # More requests take longer and have no later deadline: from some count on it is too late.
    return run[: max(1, bisect.bisect_left(range(1, len(run) + 1), True, key=late))]
