# SPDX-License-Identifier: Apache-2.0
"""What a batching policy sees and says, and the rules that all policies share."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from ..budget import Budget
from .costs import CostTable


@dataclass(frozen=True)
class Waiting:
    """A request that waits to be run.

    Attributes:
        length: its tokens, those of all its sequences.
        arrived_s: when it came.
        deadline_s: when its answer has to be there.
        sequences: how many it has; more than one only where the policy takes groups.
        longest: tokens of its longest sequence, if it has several.
    """

    length: int
    arrived_s: float
    deadline_s: float = math.inf
    sequences: int = 1
    longest: int = 0


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


def latest_start_s(request: Waiting, costs: CostTable | None) -> float:
    """When the request has to start at the latest, alone in its run, to meet its deadline."""
    if request.deadline_s == math.inf or costs is None:
        return request.deadline_s
    return request.deadline_s - costs.alone_seconds(request.length)


def in_order(waiting: Sequence[Waiting], patience_s: float | None) -> list[int]:
    """Indexes in the order in which requests are due.

    A request is due at its deadline, or `patience_s` after its arrival if that is sooner, so that none waits forever
    for more urgent ones. Without patience the order is that of arrival.
    """
    if patience_s is None:
        return list(range(len(waiting)))
    due = [min(request.deadline_s, request.arrived_s + patience_s) for request in waiting]
    return sorted(range(len(waiting)), key=due.__getitem__)


def start_s(waiting: Sequence[Waiting], budget: Budget, costs: CostTable | None, max_delay_s: float) -> float:
    """When the next run starts: at once if no more would fit, or when somebody has waited long enough for company.

    That is `max_delay_s`, or half of the slack that a deadline leaves.
    """
    sequences, tokens = sum(request.sequences for request in waiting), sum(request.length for request in waiting)
    if not max_delay_s or not budget.takes(sequences + 1, tokens, max(map(longest, waiting))):
        return -math.inf
    return min(
        request.arrived_s + min(max_delay_s, max(0.0, latest_start_s(request, costs) - request.arrived_s) / 2)
        for request in waiting
    )


def longest(request: Waiting) -> int:
    """Tokens of its longest sequence."""
    return request.longest if request.sequences > 1 else request.length


def first_run(waiting: Iterable[Waiting], budget: Budget) -> int:
    """How many of the first requests make one run: as many as the budget takes, at least one."""
    count = sequences = tokens = most = 0
    for request in waiting:
        sequences += request.sequences
        tokens += request.length
        most = max(most, longest(request))
        if count and not budget.takes(sequences, tokens, most):
            break
        count += 1
    return count


def in_time(run: Sequence[int], waiting: Sequence[Waiting], costs: CostTable | None, now_s: float) -> Sequence[int]:
    """The first requests of a run, at least one, that all meet their deadlines when they run together now."""
    if costs is None or all(waiting[at].deadline_s == math.inf for at in run):
        return run
    soonest = list(accumulate((waiting[at].deadline_s for at in run), min))

    def late(count: int) -> bool:
        return now_s + costs.run_seconds([waiting[at].length for at in run[:count]]) > soonest[count - 1]

    # More requests take longer and have no later deadline: from some count on it is too late.
    return run[: max(1, bisect.bisect_left(range(1, len(run) + 1), True, key=late))]
