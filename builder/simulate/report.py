# SPDX-License-Identifier: Apache-2.0
"""Who is compared, and what a replay comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from padfree.runtime.batching import Budget, CheapestCut, CostTable, FirstCome, Policy, Waiting
from padfree.runtime.gpu import token_bucket

from .replay import Replay
from .trace import rate_of


@dataclass(frozen=True)
class SimulatedServer:
    """A policy on a model."""

    name: str
    policy: Policy
    costs: CostTable


@dataclass(frozen=True)
class Summary:
    """A contender at an offered rate.

    Attributes:
        contender: its name.
        offered_rps: requests per second that came.
        answered_rps: answers per second, from the first arrival to the last answer plus one mean gap between arrivals,
            so that a server that keeps up has the offered rate.
        refused: share that found the queue full.
        too_late: share dropped for their deadlines.
        p50_ms, p99_ms: latency of those answered, from arrival to answer; None when there is none.
        padding: share of the computed slots that hold no token; on packed models the filler that rounds runs up.
        run_requests: requests per run, on average.
        busy: share of the time in which something ran.
    """

    contender: str
    offered_rps: float
    answered_rps: float
    refused: float
    too_late: float
    p50_ms: float | None
    p99_ms: float | None
    padding: float
    run_requests: float
    busy: float

    def record(self) -> dict[str, object]:
        """The fields, for a JSON line."""
        return asdict(self)


def contenders(
    tables: Mapping[str, CostTable], *, max_batch: int | None, max_tokens: int | None, max_delay_s: float
) -> Iterator[SimulatedServer]:
    """For every model three policies: one request per run, first come first served within the budget, the cheapest cut.

    Args:
        tables: name of a model -> what its runs cost.
        max_batch: most sequences per run; by default the table's most.
        max_tokens: most tokens per run, padding counted on padded models; by default those of the table's largest run.
        max_delay_s: how long a request waits for company.
    """
    for model, costs in tables.items():
        padded = costs.interface == "padded"
        budget = Budget(
            max_tokens=max_tokens or _largest_tokens(costs),
            max_sequences=max_batch or costs.batches[-1],
            counts_padding=padded,
        )
        batching = "dynamic batching" if padded else "token budget"
        yield SimulatedServer(f"{model}, one by one", FirstCome(Budget(None, 1, padded)), costs)
        yield SimulatedServer(f"{model}, {batching}", FirstCome(budget, max_delay_s), costs)
        yield SimulatedServer(f"{model}, cheapest cut", CheapestCut(costs, budget, max_delay_s), costs)


def summarise(contender: SimulatedServer, trace: Sequence[Waiting], done: Replay) -> Summary:
    """Figures of one replay."""
    answer_times = [(at, run.end_s) for run in done.runs for at in run.requests]
    latency_ms = [1e3 * (end_s - trace[at].arrived_s) for at, end_s in answer_times]
    first_s = trace[0].arrived_s
    span_s = max(trace[-1].arrived_s, max((run.end_s for run in done.runs), default=0.0)) - first_s
    tokens = sum(trace[at].length for at, _ in answer_times)
    slots = sum(_slots([trace[at].length for at in run.requests], contender.costs) for run in done.runs)
    p50_ms, p99_ms = np.percentile(latency_ms, (50, 99)).tolist() if latency_ms else (None, None)
    return Summary(
        contender=contender.name,
        offered_rps=rate_of(trace),
        answered_rps=len(answer_times) / (span_s + 1 / rate_of(trace)) if answer_times else 0.0,
        refused=len(done.refusal_times) / len(trace),
        too_late=len(done.too_late) / len(trace),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        padding=1 - tokens / slots if slots else 0.0,
        run_requests=len(answer_times) / max(len(done.runs), 1),
        busy=sum(run.end_s - run.start_s for run in done.runs) / span_s if answer_times else 0.0,
    )


def _largest_tokens(costs: CostTable) -> int:
    """Tokens of the largest run that was measured."""
    return max(
        length * batch
        for length, row in zip(costs.lengths, costs.cost_ms, strict=True)
        for batch, cost in zip(costs.batches, row, strict=True)
        if cost is not None
    )


def _slots(lengths: list[int], costs: CostTable) -> int:
    if costs.interface == "padded":
        return max(lengths) * len(lengths)
    tokens = sum(lengths)
    return token_bucket(tokens, max(tokens, _largest_tokens(costs)))
