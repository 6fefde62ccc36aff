# SPDX-License-Identifier: Apache-2.0
"""Scores of a model on generated tasks: percentage of right answers, and its difference from another model's.

Two models are scored on the same examples, so that their difference on all possible examples is known much better than
either score: only examples on which one is right and the other is not matter. Its 95 % interval treats
lists and queries as independent, the tags of one list as one whole (a ratio of means; Cochran, Sampling Techniques,
chapter 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from .list_operations import Example
from .retrieval import Pair

POOL = 25_000  # documents among which a query's own has to be found
QUERIES = 1000  # how many are compared with a pool at a time
NORMAL_95 = 1.96  # standard errors on either side

TASKS = ("answers", "tags", "retrieval")


@dataclass(frozen=True)
class HeldOut:
    """The test set: lists, and queries with one document each."""

    lists: Sequence[Example]
    pairs: Sequence[Pair]

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """Right answers [N], tags [T] and documents [P]."""
        return {
            "answers": np.asarray([item.answer for item in self.lists]),
            "tags": np.concatenate([item.depths for item in self.lists]),
            "retrieval": np.arange(len(self.pairs)),
        }

    @cached_property
    def owners(self) -> dict[str, np.ndarray]:
        """The list or query to which every answer, tag and document belongs."""
        lists = np.arange(len(self.lists))
        tags = np.repeat(lists, [len(item.ids) for item in self.lists])
        return {"answers": lists, "tags": tags, "retrieval": np.arange(len(self.pairs))}


@dataclass(frozen=True)
class FoundScores:
    """A model's outputs on the test set: logits of answers [N, 10], of tags [T, 5]; embeddings [P, E]."""

    answers: np.ndarray
    depths: np.ndarray
    queries: np.ndarray
    documents: np.ndarray

    @cached_property
    def choices(self) -> dict[str, np.ndarray]:
        """The model's answers for each task."""
        nearest = [
            start + (self.queries[at : min(at + QUERIES, start + POOL)] @ documents.T).argmax(1)
            for start in range(0, len(self.queries), POOL)
            for documents in [self.documents[start : start + POOL]]
            for at in range(start, start + len(documents), QUERIES)
        ]
        return {"answers": self.answers.argmax(1), "tags": self.depths.argmax(1), "retrieval": np.concatenate(nearest)}


def score(test: HeldOut, measured: FoundScores, reference: FoundScores) -> dict[str, Any]:
    """Scores by task, in percent and points.

    percent: right choices. margin: half of the 95 % interval of the difference from the reference's percent.
    changed_percent: choices that differ from the reference's, right or wrong. largest_difference: that of any number
    in any output.
    """
    names = [item.name for item in fields(FoundScores)]
    pairs = [(getattr(measured, name), getattr(reference, name)) for name in names]
    result: dict[str, Any] = {"percent": {}, "margin": {}, "changed_percent": {}}
    for task in TASKS:
        chosen, other, right = measured.choices[task], reference.choices[task], test.right[task]
        gained = (chosen == right).astype(np.int64) - (other == right)
        result["percent"][task] = 100 * float((chosen == right).mean())
        result["margin"][task] = 100 * NORMAL_95 * standard_error(gained, test.owners[task])
        result["changed_percent"][task] = 100 * float((chosen != other).mean())
    result["largest_difference"] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return result


def standard_error(values: np.ndarray, owners: np.ndarray) -> float:
    """Standard error of the mean of values [N], which depend on each other if they have the same owner [N]."""
    sums, counts = np.bincount(owners, values), np.bincount(owners)
    return float(np.sqrt(np.square(sums - values.mean() * counts).sum()) / len(values))


def differences(item: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """By how many points each task's score is above the reference's."""
    return {task: value - reference["percent"][task] for task, value in item["percent"].items()}
