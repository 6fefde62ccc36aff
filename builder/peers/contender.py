# SPDX-License-Identifier: Apache-2.0
"""A contender of a measurement: one model's answers to the batch, and the ways to run it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from padfree.onnx_tools.verification import largest_column_error
from padfree.runtime import Array

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
    """Wall-clock time of each call; calls return when they are done."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def relative_error(answers: Answers, truth: Answers) -> float:
    """The largest root mean square of any column's differences over outputs in both, in parts of the column's.

    onnx_tools/verification/agreement.py defines it. It is infinite where only one of two numbers is finite.

    Raises:
        UnavailableError: they have no output in common, or rows of other shapes.
    """
    shared_names = [name for name in truth if name in answers]
    if not shared_names:
        raise UnavailableError(f"gives {', '.join(answers) or 'nothing'}, the original {', '.join(truth)}")
    worst = 0.0
    for name in shared_names:
        ours, expected = rows_of(answers[name]), rows_of(truth[name])
        if ours.shape != expected.shape:
            raise UnavailableError(f"output '{name}' has rows of shape {ours.shape}, the original's {expected.shape}")
        worst = max(worst, largest_column_error(expected, ours))
    return worst


def rows_of(answers: Sequence[Array]) -> Array:
    """One array a sequence as rows: of tokens [T, C], of sequences [B, C], of whatever differs in size [R, 1]."""
    shapes = {answer.shape for answer in answers}
    if len(shapes) == 1 and answers[0].ndim <= 1:
        return np.stack(answers).reshape(len(answers), -1)
    if answers[0].ndim > 1 and len({shape[1:] for shape in shapes}) == 1:
        return np.concatenate([answer.reshape(len(answer), -1) for answer in answers])
    return np.concatenate([answer.reshape(-1, 1) for answer in answers])
