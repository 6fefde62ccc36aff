# SPDX-License-Identifier: Apache-2.0
"""How fast a model is, measured before anybody is served: how large its runs may be, and how much may wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.contract.names import PREFIX

from ..budget import Budget
from ..request import RaggedBatch
from ..rows import bounds_of
from ..runner import Runner

RUN_S = 0.1
"""A run takes no more tokens than the model computes in this time: a short request waits for the run under way."""
LEAST_TOKENS, MOST_TOKENS = 256, 1 << 15
"""Tokens of a run: at least, if the model is slow; at most, if it sets no limit."""
REPEATS = 2
"""Runs of every size; the first may have to allocate memory and load kernels."""


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        tokens_a_second: the rate of all devices together; None if the sample does not run.
        run_tokens: the most of a run.
    """

    tokens_a_second: float | None
    run_tokens: int


def measure(session: Runner, sample: Callable[[int], RaggedBatch], *, beside: int, devices: int = 1) -> Speed:
    """Runs samples of growing size until one takes RUN_S, or is the largest that the model takes.

    Args:
        session: runs the model.
        sample: makes a batch of so many sequences of one length.
        beside: runs under way at once on one device, which share it.
        devices: how many there are.
    """
    most = min(session.budget.max_tokens or MOST_TOKENS, MOST_TOKENS)
    try:
        size = int(sample(1).seq_lens[0])
        most_copies = max(1, min(most // size, session.budget.max_sequences or most))
        copies = 1
        while True:
            batch = sample(copies)
            seconds = min(_seconds(session, batch) for _ in range(REPEATS))
            if seconds >= RUN_S / 2 or copies == most_copies:
                break
            copies = min(4 * copies, most_copies)
    except Exception:  # whatever it is, requests will tell those who send them
        return Speed(None, most)
    rate = copies * size / seconds
    return Speed(devices * rate, max(LEAST_TOKENS, min(most, int(rate * RUN_S / beside))))


def with_own_first_tokens(batch: RaggedBatch, metadata: Metadata) -> RaggedBatch:
    """The batch with another first token in every sequence, where the model would compute equal ones once."""
    if metadata.input_of_role(PREFIX) is None:
        return batch
    item = metadata.ids_input()
    ids = batch.tokens[item.name].copy()
    usable_ids = np.setdiff1d(np.arange(item.limit or batch.seq_lens.size), item.excluded)
    ids[bounds_of(batch.seq_lens)[:-1]] = np.resize(usable_ids, batch.seq_lens.size)
    return batch._replace(tokens={**batch.tokens, item.name: ids})


def run_budget(budget: Budget, speed: Speed) -> Budget:
    """What one run takes: no more than the model does, and than is computed while others may wait."""
    tokens = speed.run_tokens if budget.max_tokens is None else min(budget.max_tokens, speed.run_tokens)
    return Budget(tokens, budget.max_sequences, budget.counts_padding)


def _seconds(session: Runner, batch: RaggedBatch) -> float:
    start = time.perf_counter()
    session.run_ragged(batch)
    return time.perf_counter() - start
