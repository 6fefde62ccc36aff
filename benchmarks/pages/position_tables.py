# SPDX-License-Identifier: Apache-2.0
"""Whole models with positions in their attention: every contender's time, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.records import LIMIT, PADFREE, Record, times_of

Times = Mapping[str, float]
BERT_BASE = "BERT-base"
"""Padfree's own time of BERT-base, for a batch of the same shape in the same run."""
COMPILE = "torch.compile, padded"


@dataclass(frozen=True)
class Goal:
    """A limit for our time in ms, or for our time over another's; if `faster`, a minimum for the other's over ours."""

    bound: float
    beside: str = ""
    name: str = ""
    faster: bool = False

    def text(self, times: Times) -> str:
        """The goal, what was reached, and whether that is enough; a dash if it was not measured."""
        ours, other = times[PADFREE], times.get(self.beside) if self.beside else 1.0
        wanted = f"{self.bound:g} {self.name or 'ms'}"
        if other is None:
            return f"{wanted}: -"
        reached = other / ours if self.faster else ours / other
        met = reached >= self.bound if self.faster else reached <= self.bound
        return f"{wanted}: {reached:.2f} {'met' if met else 'missed'}"


def times_faster(bound: float, than: str, name: str) -> Goal:
    """At least this many times as fast as another."""
    return Goal(bound, than, f"x as fast as {name}", faster=True)


def times_limit(bound: float) -> Goal:
    """At most this multiple of the limit."""
    return Goal(bound, LIMIT, "x the limit")


def times_bert(bound: float) -> Goal:
    """At most this multiple of BERT-base's time."""
    return Goal(bound, BERT_BASE, f"x {BERT_BASE}")


GOALS: Mapping[tuple[str, int, int], tuple[Goal, ...]] = {
    ("modernbert", 16, 512): (Goal(2.4), times_limit(1.3), times_faster(1.4, "PyTorch varlen, compiled", "varlen")),
    ("modernbert", 1, 8192): (Goal(6.6),),
    ("deberta", 16, 512): (Goal(2.2), times_faster(4.9, COMPILE, "torch.compile")),
    ("deberta", 16, 128): (times_faster(3, COMPILE, "torch.compile"),),
    ("deberta", 1, 128): (times_faster(3, COMPILE, "torch.compile"),),
    ("mpnet", 16, 512): (times_bert(1.05),),
    ("t5", 16, 512): (times_bert(1.15),),
    ("nomic", 16, 512): (times_limit(1.3),),
}
"""Goals by model, B and S."""


def goals_of(record: Record, records: Sequence[Record]) -> str:
    """The goals of a record's case, and what it reached."""
    shape = (record["batch"], record["seq_len"])
    bert = [
        item["ours_ms"] for item in records if (item["model"], item["batch"], item["seq_len"]) == ("bert-base", *shape)
    ]
    times = times_of(record) | ({BERT_BASE: bert[-1]} if bert else {})
    return "; ".join(goal.text(times) for goal in GOALS.get((record["model"], *shape), ()))
