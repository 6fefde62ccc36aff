# SPDX-License-Identifier: Apache-2.0
"""Deals sequences out so that all who compute at once have the same work: to GPUs of a pool, to ranks of a training.

A run's time follows from its tokens and the squares of its lengths, not from its rows. Both grow with length, so
sequences sorted by length and dealt in a snake (first to last, last to first, and so on) give everybody as many rows
and nearly the same work ("Boosting Distributed Training Performance of the Unpadded BERT Model", Zeng et al.,
arXiv:2208.08124, balances the ranks of a training by exchanging sorted data between them; here nothing is exchanged,
because all lengths are known where the sequences are dealt).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from padfree.runtime.errors import SessionError

from ..rows import IntArray
from .costs import CostTable

FIXED_MS, TOKEN_MS, SQUARES_A_TOKEN = 0.2, 2.7e-4, 2700
"""A packed run of BERT-base in fp16 on an H200: 0.283 ms for 1 x 128, 0.541 ms for 16 x 128 and 1.69 ms for 16 x 512
with 40 % padding (benchmarks/results/h200/end_to_end.jsonl). A squared length costs as much as a 2700th of a
token."""
SWAPS_A_PART, ALIKE = 2, 1000
"""Most swaps per part; parts that differ by a thousandth of their mean are alike."""
MODEL_LENGTHS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MODEL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def snake(lengths: npt.ArrayLike, workers: int) -> list[IntArray]:
    """Deals sequences by length, back and forth.

    Args:
        lengths: tokens of each sequence.
        workers: how many to deal to.

    Returns:
        For each worker the indexes of its sequences, the longest first. Counts differ by one at most. The same lengths
        give the same parts everywhere, whatever the machine: the sort is stable.

    Raises:
        SessionError: nobody to deal to.
    """
    if workers < 1:
        raise SessionError(f"workers is {workers}, allowed: 1 or more; say how many share the sequences")
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    rounds = -(-order.size // workers)
    table = np.full(rounds * workers, -1, dtype=np.int64)
    table[: order.size] = order
    rows = table.reshape(rounds, workers)
    rows[1::2] = rows[1::2, ::-1].copy()
    return [column[column >= 0] for column in rows.T]


def even_out(parts: Sequence[IntArray], lengths: npt.ArrayLike) -> list[IntArray]:
    """Swaps sequences between the parts with the most and the least work, as long as that brings them closer.

    After a snake of few sequences the work still differs by some per cent, which a swap or two remove. Work is counted
    in whole numbers: sums of fractions may round differently on another processor, which would then swap others.

    Args:
        parts: the indexes of each part; counts stay as they are.
        lengths: tokens of each sequence.

    Returns:
        The parts, of which the largest and the smallest differ by a thousandth of the mean, or no swap would help.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    work = sizes * SQUARES_A_TOKEN + sizes * sizes
    evened = [part.copy() for part in parts]
    sums = np.array([work[part].sum() for part in evened], dtype=np.int64)
    for _ in range(SWAPS_A_PART * len(evened)):
        most, least = int(sums.argmax()), int(sums.argmin())
        gap = int(sums[most] - sums[least])
        if gap * ALIKE * len(evened) <= int(sums.sum()) or not evened[least].size:
            break
        work_moved = work[evened[most]][:, None] - work[evened[least]]
        gap_left = np.abs(gap - 2 * work_moved)
        at = int(gap_left.argmin())
        if int(gap_left.flat[at]) >= gap:
            break
        one, other = divmod(at, evened[least].size)
        sums[most] -= work_moved.flat[at]
        sums[least] += work_moved.flat[at]
        evened[most][one], evened[least][other] = evened[least][other], evened[most][one]
    return evened


def modelled_costs(interface: str) -> CostTable:
    """What runs cost where nobody measured: the proportions of BERT-base on an H200.

    It tells which of two runs takes longer and by what share. `padfree costs` measures the model at hand.
    """
    cells = [
        [FIXED_MS + TOKEN_MS * batch * (length + length * length / SQUARES_A_TOKEN) for batch in MODEL_BATCHES]
        for length in MODEL_LENGTHS
    ]
    environment: Mapping[str, str] = {"model": "modelled"}
    return CostTable(interface, MODEL_LENGTHS, MODEL_BATCHES, tuple(map(tuple, cells)), environment)
