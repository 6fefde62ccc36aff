# SPDX-License-Identifier: Apache-2.0
"""What a driver tells at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .driver import Outcome
from .locations import Location
from .manifest import Manifest

REPORT = "_report.json"


@dataclass(frozen=True)
class WorkerReport:
    """One worker's share in this run.

    Attributes:
        name: the worker's.
        tokens: tokens of the texts that it did.
        tokens_a_second: its rate from its first batch to its last.
        idle: share of that time without a batch under way; None where it did nothing.
    """

    name: str
    tokens: int
    tokens_a_second: float
    idle: float | None


@dataclass(frozen=True)
class Report:
    """The whole result, and what this run did of it.

    Attributes:
        texts: rows with a result.
        tokens: tokens of these.
        cut: texts that lost their ends.
        bad: rows without a result, by the kind of reason.
        shards: how many there are.
        shards_found: how many were done by earlier runs.
        seconds: this run's time, from the first shard dealt to the last one done.
        texts_now: texts that this run did.
        tokens_now: tokens of these.
        tokens_saved: how many of these were not computed, because texts that begin alike share them.
        workers: who did them.
        losses: workers that ended by themselves and were started again.
    """

    texts: int
    tokens: int
    cut: int
    bad: Mapping[str, int]
    shards: int
    shards_found: int
    seconds: float
    texts_now: int
    tokens_now: int
    workers: Sequence[WorkerReport]
    losses: Sequence[str]
    tokens_saved: int = 0

    @property
    def tokens_a_second(self) -> float:
        """Tokens per second of this run."""
        return self.tokens_now / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return {**asdict(self), "tokens_a_second": self.tokens_a_second}


def report_of(manifest: Manifest, outcome: Outcome, earlier: frozenset[int], names: Sequence[str]) -> Report:
    """The report.

    Args:
        manifest: what was to be done.
        outcome: what the driver saw.
        earlier: shards that earlier runs did.
        names: the workers'.
    """
    parts = outcome.parts
    now = [part for shard, part in parts.items() if shard not in earlier]
    bad: Counter[str] = Counter()
    for part in parts.values():
        bad.update(part.bad)
    workers = []
    tokens_saved = 0
    for worker, name in enumerate(names):
        busy_s, span_s, savings = outcome.totals_of(worker)
        tokens = outcome.tokens[worker]
        tokens_saved += savings
        workers.append(
            WorkerReport(name, tokens, tokens / span_s if span_s else 0.0, 1 - busy_s / span_s if span_s else None)
        )
    return Report(
        texts=sum(part.texts for part in parts.values()),
        tokens=sum(part.tokens for part in parts.values()),
        cut=sum(part.cut for part in parts.values()),
        bad=dict(sorted(bad.items())),
        shards=len(manifest.shards),
        shards_found=len(earlier),
        seconds=outcome.seconds,
        texts_now=sum(part.texts for part in now),
        tokens_now=sum(part.tokens for part in now),
        workers=tuple(workers),
        losses=tuple(outcome.losses),
        tokens_saved=tokens_saved,
    )


def write_report(output: Location, report: Report) -> None:
    """Keeps it beside the result."""
    output.child(REPORT).write((json.dumps(report.to_dict(), indent=1) + "\n").encode())
