# SPDX-License-Identifier: Apache-2.0
"""What is measured beside what: one model's answers to the batch, and the ways to run it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Answers = Mapping[str, list[Array]]
Way = Callable[[int], list[float]]
"""Runs the batch some times and returns every run's time in ms."""


class UnavailableError(Exception):
    """A peer cannot take part; the message is the reason."""


@dataclass(frozen=True)
class Contender:
    """One contender, ready to run.

    answers: output name -> one array a sequence, without padding; empty where there is nothing to compare.
    ways: name of a way to run it -> its measurement.
    build_s: seconds that making it took; 0 where nothing had to be built.
    """

    answers: Answers
    ways: Mapping[str, Way]
    close: Callable[[], None] = field(default=lambda: None)
    build_s: float = 0.0


def wall_ms(work: Callable[[], object], runs: int) -> list[float]:
    """Wall-clock time of every one of some calls that return when they are done."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def relative_error(answers: Answers, truth: Answers) -> float:
    """The largest, over outputs in both, of the norm of the difference over the norm of the truth; NaN stays NaN.

    Raises:
        UnavailableError: they have no output in common, or rows of other shapes.
    """
    shared = [name for name in truth if name in answers]
    if not shared:
        raise UnavailableError(f"gives {', '.join(answers) or 'nothing'}, the original {', '.join(truth)}")
    worst = 0.0
    for name in shared:
        ours, wanted = (np.concatenate([np.ravel(row) for row in rows]) for rows in (answers[name], truth[name]))
        if ours.shape != wanted.shape:
            raise UnavailableError(f"output '{name}' has {ours.size} elements, the original's {wanted.size}")
        difference = np.linalg.norm(ours.astype(np.float64) - wanted.astype(np.float64))
        worst = float(np.maximum(worst, difference / (np.linalg.norm(wanted.astype(np.float64)) or 1.0)))
    return worst
