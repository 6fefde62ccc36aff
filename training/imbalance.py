# SPDX-License-Identifier: Apache-2.0
"""How unequal the work of ranks is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from padfree.runtime.batching import SQUARES_A_TOKEN

from .errors import SamplerError


def imbalances(
    steps: Iterable[Sequence[Sequence[int]]], lengths: npt.ArrayLike, *, squares_a_token: float = SQUARES_A_TOKEN
) -> npt.NDArray[np.float64]:
    """How much longer each step takes than if its ranks had the same work.

    Args:
        steps: for each step, for each rank, the rows of its batch; `BalancedBatchSampler.shares` gives them.
        lengths: tokens of every row of the dataset, [N].
        squares_a_token: so many squared tokens of attention take as long as everything else for one token; the default
            is BERT-base's on an H200, `math.inf` counts tokens alone.

    Returns:
        For each step the work of the rank that has most over the mean of all ranks, minus 1: 0 is balance, [steps].

    Raises:
        SamplerError: squares_a_token is not above 0.
    """
    if not squares_a_token > 0:
        raise SamplerError(f"squares_a_token is {squares_a_token}, allowed: above 0; leave it out for BERT-base's")
    sizes = np.asarray(lengths, dtype=np.float64)
    work = sizes + sizes * sizes / squares_a_token
    excesses = []
    for shares in steps:
        of_ranks = np.array([work[list(rows)].sum() for rows in shares])
        excesses.append(of_ranks.max() / of_ranks.mean() - 1 if of_ranks.any() else 0.0)
    return np.array(excesses)
