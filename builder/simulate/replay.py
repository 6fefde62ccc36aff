# SPDX-License-Identifier: Apache-2.0
"""A server of one GPU, in simulated time: arrivals in, a policy that chooses runs, and a cost table for a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from padfree.runtime.batching import CostTable, Policy, Waiting, latest_start_s

from ..errors import BuildError


@dataclass(frozen=True)
class Run:
    """One simulated run: which requests of the trace, from when to when."""

    requests: list[int]
    start_s: float
    end_s: float


@dataclass
class Replay:
    """What became of a trace: its runs, and the requests that none took."""

    runs: list[Run] = field(default_factory=list)
    refusal_times: list[int] = field(default_factory=list)
    too_late: list[int] = field(default_factory=list)


def replay(trace: Sequence[Waiting], policy: Policy, costs: CostTable, *, max_waiting: int) -> Replay:
    """Serves a trace as a Batcher with one run at a time would, if runs took the table's time and all else took none.

    Args:
        trace: requests in the order of arrival.
        policy: chooses the runs; its own cost table, if any, is what it believes.
        costs: what runs really take.
        max_waiting: requests that may wait; more are refused.

    Raises:
        BuildError: no room for a single request, or the policy lets requests wait for something that never comes.
    """
    if max_waiting < 1:
        raise BuildError(f"--max-waiting is {max_waiting}, allowed: 1 or more; leave it out for 1024")
    done = Replay()
    has_deadlines = any(request.deadline_s < math.inf for request in trace)
    waiting: list[int] = []
    next_arrival = 0
    now_s = 0.0
    while waiting or next_arrival < len(trace):
        if not waiting:
            now_s = max(now_s, trace[next_arrival].arrived_s)
        while next_arrival < len(trace) and trace[next_arrival].arrived_s <= now_s:
            (waiting if len(waiting) < max_waiting else done.refusal_times).append(next_arrival)
            next_arrival += 1
        if has_deadlines:
            late = {at for at in waiting if latest_start_s(trace[at], policy.costs) < now_s}
            done.too_late += sorted(late)
            waiting = [at for at in waiting if at not in late]
            if not waiting:
                continue
        decision = policy.decide([trace[at] for at in waiting], now_s)
        if decision.run:
            requests = [waiting[at] for at in decision.run]
            end_s = now_s + costs.run_seconds([trace[at].length for at in requests])
            done.runs.append(Run(requests, now_s, end_s))
            batch = set(requests)
            waiting = [at for at in waiting if at not in batch]
            now_s = end_s
            continue
        upcoming_s = trace[next_arrival].arrived_s if next_arrival < len(trace) else math.inf
        wake_s = min(decision.wake_s, upcoming_s)
        if not now_s < wake_s < math.inf:
            raise BuildError(
                f"{type(policy).__name__} runs none of {len(waiting)} requests at {now_s:.6f} s and wants to be asked "
                f"again at {decision.wake_s:.6f} s; it has to name a later time, or to run something"
            )
        now_s = wake_s
    return done
