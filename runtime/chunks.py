# SPDX-License-Identifier: Apache-2.0
"""Large batches as windows that run one after the other, so that one hears of each, and its answers can be put aside.

A window is several runs, but on a CPU, where a run takes seconds, in which nothing else is heard of, nor Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .budget import Budget, cut
from .request import RaggedBatch
from .session import Session

CHUNK_TOKENS = 1 << 18
"""Of a window on a GPU: enough runs for each to begin before the one before it has ended."""
CPU_CHUNK_TOKENS = 4096
"""On a CPU: chunks of 16,384 tokens take 2 per cent less of its time, and those of 2,048 8 per cent more."""
OnChunk = Callable[[int, int], object]
"""Hears of a window that has run: its sequences and its tokens."""


def chunks(session: Session, seq_lens: Sequence[int]) -> list[slice]:
    """Sequences of these lengths, in their order, as windows of the session's model."""
    tokens = CPU_CHUNK_TOKENS if session.metadata.engine is None else CHUNK_TOKENS
    return [slice(run.start, run.stop) for run in cut(seq_lens, Budget(tokens))]


def run_chunks(session: Session, ragged: RaggedBatch, on_chunk: OnChunk) -> dict[str, list[Any]]:
    """As Session.run_ragged, and tells of every window."""
    lengths = ragged.seq_lens.tolist()
    results: dict[str, list[Any]] = {item.name: [] for item in session.metadata.outputs}
    for chunk in chunks(session, lengths):
        for name, rows in session.run_ragged(ragged.part(chunk.start, chunk.stop)).items():
            results[name].extend(rows)
        on_chunk(chunk.stop - chunk.start, sum(lengths[chunk]))
    return results
