# SPDX-License-Identifier: Apache-2.0
"""Two processes that train together: every row once, equal counts, and no row for both, whoever divides the batches."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from padfree.training import BalancedBatchSampler, imbalances

from tests.support.skips import without

from .rows import BATCH, EPOCHS, LENGTHS, ROWS, SEED

PROCESS = Path(__file__).with_name("rank_process.py")
ROOT = PROCESS.parents[2]
RANKS, PATIENCE_S = 2, 240

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]


def run(how: str, needs: tuple[str, ...] = ()) -> list[Any]:
    """What the processes have seen, in the order of ranks."""
    reason = without(*needs)
    if reason is not None:
        pytest.skip(reason)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROCESS), how],
            env={**os.environ, **shared, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        reports = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, reports
    actual: list[Any] = json.loads(reports[0][0].splitlines()[-1])
    return actual


def expected_sampler(epoch: int) -> BalancedBatchSampler:
    sampler = BalancedBatchSampler(LENGTHS, BATCH, replicas=RANKS, seed=SEED)
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize("how", ["plain", "accelerate", "split", "even"])
def test_every_row_goes_to_one_process(how: str) -> None:
    ranks = run(how, () if how == "plain" else ("accelerate",))
    for epoch in range(EPOCHS):
        batches = [rank[epoch] for rank in ranks]
        assert len(batches[0]) == len(batches[1])
        assert all(len(batch) == BATCH for of_rank in batches for batch in of_rank)
        counts = Counter(chain.from_iterable(chain.from_iterable(batches)))
        assert set(counts) == set(range(ROWS))
        assert sum(counts.values()) == 104, "13 steps of 8 rows, one of them twice"
        assert [list(shares) for shares in zip(*batches, strict=True)] == list(expected_sampler(epoch).shares())
        assert imbalances(zip(*batches, strict=True), LENGTHS).mean() < 0.1
    assert ranks[0][0] != ranks[0][1], "another order in every epoch"


def test_batches_of_a_rank_are_not_divided_again() -> None:
    for rank, seen in enumerate(run("twice", ("accelerate",))):
        assert f"these are the batches of rank {rank} of 2 alone" in seen["error"]


def test_the_trainer_of_sentence_transformers() -> None:
    ranks = run("trainer", ("accelerate", "datasets", "sentence_transformers"))
    batches = [rank["batches"] for rank in ranks]
    counts = Counter(chain.from_iterable(chain.from_iterable(batches)))
    steps = ROWS // (RANKS * BATCH)  # with several processes, the trainer drops a last step that is not full
    assert [len(of_rank) for of_rank in batches] == [steps] * RANKS
    assert sum(counts.values()) == len(counts) == steps * RANKS * BATCH, "no row twice"
    for rank in ranks:
        assert (rank["steps"], rank["epoch"], rank["replicas"]) == (EPOCHS * steps, EPOCHS - 1, RANKS)
