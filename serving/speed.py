# SPDX-License-Identifier: Apache-2.0
"""How fast the model is, measured before anybody is served: how large its runs may be, and how much may wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from padfree.runtime.batching import Budget
from padfree.runtime.pool import DevicePool
from padfree.runtime.request import Ragged, read_packed
from padfree.runtime.text_tasks import Served

from .engine import Runner

RUN_S = 0.1
"""A run takes no more tokens than it computes in so long: whoever has one text waits for the run that is under way."""
LEAST_TOKENS, MOST_TOKENS = 256, 1 << 15
"""Of a run, where the model is slow, and where it sets no limit."""
SAMPLE = "a " * 62
REPEATS = 2
"""Runs of every size; the first may find memory and kernels to be made."""


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        tokens_a_second: of all devices together; None where the sample does not run.
        run_tokens: the most of a run.
    """

    tokens_a_second: float | None
    run_tokens: int


def measure(session: Runner, served: Served, runs: int) -> Speed:
    """Runs samples of growing size until one takes RUN_S, or is the largest that the model takes.

    Args:
        session: runs the model.
        served: makes the samples.
        runs: how many are under way at once, on all devices: those of one device share it.
    """
    encoder = served.encoder()
    size = int(encoder.encode([SAMPLE]).seq_lens[0])
    most = min(session.budget.max_tokens or MOST_TOKENS, MOST_TOKENS)
    most_copies = max(1, min(most // size, session.budget.max_sequences or most))
    copies, seconds = 1, 0.0
    while True:
        encoded = encoder.encode([SAMPLE] * copies)
        try:
            batch = read_packed(served.inputs.columns(encoded), encoded.seq_lens, session.metadata)
            seconds = min(_seconds(session, batch) for _ in range(REPEATS))
        except Exception:  # whatever it is, requests will tell those who send them
            return Speed(None, most)
        if seconds >= RUN_S / 2 or copies == most_copies:
            break
        copies = min(4 * copies, most_copies)
    rate = copies * size / seconds
    devices = len(session.devices) if isinstance(session, DevicePool) else 1
    beside = max(1, runs // devices)
    return Speed(devices * rate, max(LEAST_TOKENS, min(most, int(rate * RUN_S / beside))))


def run_budget(session: Runner, speed: Speed | None) -> Budget:
    """What one run takes: no more than the model does, and than is computed while others may wait."""
    budget = session.budget
    if speed is None:
        return budget
    tokens = speed.run_tokens if budget.max_tokens is None else min(budget.max_tokens, speed.run_tokens)
    return Budget(tokens, budget.max_sequences, budget.counts_padding)


def _seconds(session: Runner, batch: Ragged) -> float:
    start = time.perf_counter()
    session.run_ragged(batch)
    return time.perf_counter() - start
