# SPDX-License-Identifier: Apache-2.0
"""Batches of ranks both ways, balanced and in the order of rows, and how unequal they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.runtime.batching.dealing import snake
from padfree.training import BalancedBatchSampler, imbalances

Lengths = npt.NDArray[np.int64]


def both_ways(sampler: BalancedBatchSampler) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """All steps of an epoch: balanced shares, and the same rows dealt out in order."""
    for shares in sampler.shares():
        rows = sorted(row for share in shares for row in share)
        mixed = np.random.default_rng([sampler.seed, rows[0]]).permutation(rows)
        yield shares, mixed.reshape(sampler.replicas, -1).tolist()


def snake_alone(lengths: Lengths, shares: list[list[int]]) -> list[list[int]]:
    """The same rows dealt in a snake, without swaps."""
    rows = np.concatenate([np.array(share) for share in shares])
    return [rows[hand].tolist() for hand in snake(lengths[rows], len(shares))]


def imbalance(lengths: Lengths, ranks: int, batch: int, epochs: int) -> dict[str, Any]:
    """Measures one number of ranks and one batch size."""
    sampler = BalancedBatchSampler(lengths, batch, replicas=ranks, drop_last=True)
    results: dict[str, list[Any]] = {"balanced": [], "snake": [], "unbalanced": []}
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        balanced, unbalanced = zip(*both_ways(sampler), strict=True)
        results["balanced"].append(imbalances(balanced, lengths))
        results["snake"].append(imbalances(map(partial(snake_alone, lengths), unbalanced), lengths))
        results["unbalanced"].append(imbalances(unbalanced, lengths))
    record: dict[str, Any] = {"case": f"imbalance, {ranks} ranks x {batch}", "ranks": ranks, "batch": batch}
    for name, steps in results.items():
        values = np.concatenate(steps)
        record |= {
            "steps": values.size,
            f"{name}_mean": round(float(values.mean()), 5),
            f"{name}_p99": round(float(np.percentile(values, 99)), 5),
        }
    return record
