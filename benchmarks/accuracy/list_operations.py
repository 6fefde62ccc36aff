# SPDX-License-Identifier: Apache-2.0
"""A generated task with known answers: nested operations on lists of digits, of very different lengths.

It follows ListOps (Nangia and Bowman, 2018): `[MAX 2 9 [MIN 4 7] 0]` is 9. A model gives the value of the whole list
(10 classes) and tags every token with its depth of nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

OPERATIONS: Mapping[str, Callable[[list[int]], int]] = MappingProxyType(
    {"MAX": max, "MIN": min, "FIRST": lambda values: values[0], "SUM": lambda values: sum(values) % 10}
)
START, CLOSE, FIRST_OPERATION, FIRST_DIGIT = 1, 2, 3, 3 + len(OPERATIONS)  # 0 is padding
VOCAB_SIZE = FIRST_DIGIT + 10
ANSWERS, DEPTHS = 10, 5
MAX_ARGUMENTS = 5
NESTING = 0.35  # share of arguments that are lists, where lists are allowed


@dataclass(frozen=True)
class Example:
    """One sequence: token ids and depth of every token [len], and the answer."""

    ids: np.ndarray
    depths: np.ndarray
    answer: int


def examples(count: int, max_length: int, seed: int, workers: int = 1) -> list[Example]:
    """Seeded examples of 4 to max_length tokens; the same for any number of workers."""
    share = 1000
    starts = range(0, count, share)
    make = partial(_share, count=share, max_length=max_length, seed=seed)
    if workers == 1:
        parts = [make(start) for start in starts]
    else:
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(make, starts))
    return [item for part in parts for item in part][:count]


def _share(start: int, count: int, max_length: int, seed: int) -> list[Example]:
    rng = np.random.default_rng((seed, start))
    results: list[Example] = []
    while len(results) < count:
        ids, depths = [START], [0]
        answer = _list(rng, ids, depths, depth=1)
        if len(ids) <= max_length:
            results.append(Example(np.asarray(ids, np.int32), np.asarray(depths, np.int32), answer))
    return results


def _list(rng: np.random.Generator, ids: list[int], depths: list[int], depth: int) -> int:
    """Appends one list and returns its value."""
    operation = int(rng.integers(len(OPERATIONS)))
    ids.append(FIRST_OPERATION + operation)
    depths.append(depth)
    values = []
    for _ in range(int(rng.integers(2, MAX_ARGUMENTS + 1))):
        if depth < DEPTHS - 1 and rng.random() < NESTING:
            values.append(_list(rng, ids, depths, depth + 1))
        else:
            values.append(int(rng.integers(10)))
            ids.append(FIRST_DIGIT + values[-1])
            depths.append(depth)
    ids.append(CLOSE)
    depths.append(depth)
    return list(OPERATIONS.values())[operation](values)
