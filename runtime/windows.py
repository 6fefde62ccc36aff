# SPDX-License-Identifier: Apache-2.0
"""Large batches as windows that run one after the other, so that one hears of each, and its answers can be put aside.

A window is several runs, but on a CPU, where a run takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .budget import Budget, cut
from .request import Ragged
from .session import CPU_TOKENS_A_RUN, Session

WINDOW_TOKENS = 1 << 18
"""Of a window on a GPU: enough runs for each to begin before the one before it has ended."""
Ran = Callable[[int, int], object]
"""Hears of a window that has run: its sequences and its tokens."""


def windows(session: Session, seq_lens: Sequence[int]) -> list[slice]:
    """Sequences of these lengths, in their order, as windows of the session's model."""
    tokens = CPU_TOKENS_A_RUN if session.metadata.engine is None else WINDOW_TOKENS
    return [slice(run.start, run.stop) for run in cut(seq_lens, Budget(tokens))]


def run_windows(session: Session, ragged: Ragged, ran: Ran) -> dict[str, list[Any]]:
    """As Session.run_ragged, and tells of every window."""
    lengths = ragged.seq_lens.tolist()
    results: dict[str, list[Any]] = {item.name: [] for item in session.metadata.outputs}
    for window in windows(session, lengths):
        for name, rows in session.run_ragged(ragged.part(window.start, window.stop)).items():
            results[name].extend(rows)
        ran(window.stop - window.start, sum(lengths[window]))
    return results
