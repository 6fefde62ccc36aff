# SPDX-License-Identifier: Apache-2.0
"""Measures a cost table: runs of equal lengths on a session, timed as callers see them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.runtime.errors import SessionError
from padfree.runtime.random_batches import random_batch
from padfree.runtime.session import Session

from .costs import CostTable, check_grid

STEPS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
CPU_STEPS = (16, 64, 256, 1024, 4096)
"""On a CPU, whose runs take seconds and whose costs grow steadily with the tokens, a coarse grid is enough."""
DEFAULT_MAX_LENGTH = 512  # tokens, for models that set no limit
DEFAULT_MAX_BATCH = 32
WARM_UP = 3  # runs: one without a CUDA graph, one that captures it, one that replays it
CPU_WARM_UP = 1
REPEATS = 20
CPU_REPEATS = 5


def default_grid(session: Session) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths and batches that cover what the session takes, in larger steps on a CPU."""
    metadata = session.metadata
    longest = metadata.max_positions or DEFAULT_MAX_LENGTH
    if metadata.engine is not None:
        longest = metadata.engine.profile.max_seq_len
    most = session.budget.max_sequences or DEFAULT_MAX_BATCH
    steps, doublings = (CPU_STEPS, 2) if metadata.engine is None else (STEPS, 1)
    lengths = [step for step in steps if step < longest] or [1]
    batches = [1 << power for power in range(0, most.bit_length(), doublings) if 1 << power < most] or [1]
    return (*lengths, longest), (*batches, most)


def measure_costs(
    session: Session,
    *,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    repeats: int | None = None,
    seed: int = 0,
    environment: Mapping[str, Any] | None = None,
    on_run: Callable[[int], object] = lambda _tokens: None,
) -> CostTable:
    """Times Session.run, from ids on the host to results on the host, for every length and batch.

    Args:
        session: what runs; nothing else should use its device meanwhile.
        lengths: grid of lengths, growing; by default up to the longest that the session takes.
        batches: grid of sequences per run, growing from 1; by default up to the most that it takes.
        repeats: timed runs of a cell, of which the median is kept; None: 20, or 5 on a CPU.
        seed: for the token ids.
        environment: more facts about the measurement to keep in the table, beside those that the session knows.
        on_run: is called after every run with its tokens, padding included.

    Raises:
        SessionError: the session does not take the lengths or batches, or they are no grid.
    """
    lengths, batches = _grid(session, lengths, batches)
    if repeats is not None and repeats < 1:
        raise SessionError(f"repeats is {repeats}, allowed: 1 or more; leave it out for {_runs(session, None).repeats}")
    runs, rng = _runs(session, repeats), np.random.default_rng(seed)
    rows = [_measure(session, length, batches, runs, rng, on_run) for length in lengths]
    facts = {**_facts(session.metadata), "repeats": runs.repeats, **(environment or {})}
    return CostTable(session.metadata.interface, tuple(lengths), tuple(batches), tuple(rows), facts)


def tokens_of_runs(
    session: Session,
    *,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    repeats: int | None = None,
) -> list[int]:
    """The tokens of every run that measure_costs makes with the same arguments."""
    lengths, batches = _grid(session, lengths, batches)
    cells = [length * batch for length in lengths for batch in batches if _is_one_run(session, length, batch)]
    return cells * sum(_runs(session, repeats))


class _Runs(NamedTuple):
    """How many runs a cell of the grid gets."""

    warm_up: int
    repeats: int


def _runs(session: Session, repeats: int | None) -> _Runs:
    warm_up, usual = (CPU_WARM_UP, CPU_REPEATS) if session.metadata.engine is None else (WARM_UP, REPEATS)
    return _Runs(warm_up, usual if repeats is None else repeats)


def _grid(
    session: Session, lengths: Sequence[int] | None, batches: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths and batches to measure, checked before anything runs. Raises SessionError."""
    own_lengths, own_batches = default_grid(session)
    grid = own_lengths if lengths is None else tuple(lengths), own_batches if batches is None else tuple(batches)
    check_grid(*grid)
    metadata, longest = session.metadata, own_lengths[-1]
    has_limit = metadata.engine is not None or metadata.max_positions is not None
    if has_limit and grid[0][-1] > longest:
        raise SessionError(
            f"lengths reach {grid[0][-1]} tokens, allowed: at most {longest}, the longest sequence that the model "
            "takes; leave longer ones out"
        )
    return grid


def _is_one_run(session: Session, length: int, batch: int) -> bool:
    return batch == 1 or session.budget.takes(batch, batch * length, length)


def _measure(
    session: Session,
    length: int,
    batches: Sequence[int],
    runs: _Runs,
    rng: np.random.Generator,
    on_run: Callable[[int], object],
) -> tuple[float | None, ...]:
    """Milliseconds for each batch; None where the session would need several runs."""
    requests = {}
    for batch in batches:
        if _is_one_run(session, length, batch):
            ragged = random_batch(session.metadata, [length] * batch, rng)
            grids = {name: values.reshape(batch, length, *values.shape[1:]) for name, values in ragged.tokens.items()}
            requests[batch] = {name: list(values) for name, values in {**grids, **ragged.of_sequences}.items()}
    times_ms: dict[int, list[float]] = {batch: [] for batch in requests}
    # Batches take turns, so that a short disturbance of the machine does not hit all runs of one batch.
    for _ in range(sum(runs)):
        for batch, request in requests.items():
            start = time.perf_counter()
            session.run(request)
            times_ms[batch].append(1e3 * (time.perf_counter() - start))
            on_run(batch * length)
    medians = {batch: round(statistics.median(times[runs.warm_up :]), 5) for batch, times in times_ms.items()}
    return tuple(medians.get(batch) for batch in batches)


def _facts(metadata: Metadata) -> dict[str, Any]:
    facts = {"precision": metadata.precision, "padfree": metadata.raw.get("version", "unknown")}
    if metadata.engine is not None:
        facts.update(gpu=metadata.engine.gpu_name, tensorrt=metadata.engine.tensorrt)
    return facts
