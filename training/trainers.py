# SPDX-License-Identifier: Apache-2.0
"""The sampler as trainers take it. Nothing here imports torch: where a trainer runs, it is imported already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from .errors import SamplerError
from .sampler import BalancedBatchSampler

Lengths = Sequence[int] | npt.NDArray[Any]
LengthsOf = Callable[[Any], Lengths]


def world_size() -> int:
    """Processes of this training: torch.distributed's, or what the launcher says in WORLD_SIZE; 1 where there is none.

    Raises:
        SamplerError: WORLD_SIZE is no number above 0.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdecimal() or int(value) < 1:
        raise SamplerError(f"WORLD_SIZE is {value!r}, allowed: 1 or more; start the training with torchrun")
    return int(value)


def for_sentence_transformers(
    lengths: Lengths | LengthsOf, *, replicas: int | None = None
) -> Callable[..., BalancedBatchSampler]:
    """What `SentenceTransformerTrainingArguments(batch_sampler=...)` takes, and the arguments of its relatives.

    The trainer calls it for the dataset that it trains on, and for those that it evaluates on; accelerate then deals
    the batches out. With several datasets (a DatasetDict) the trainer mixes their batches, so that those of one step
    are no longer of one dataset: every row still comes once, but ranks are not balanced.

    Args:
        lengths: tokens of every row of the training set, all columns together; or a function that is given a dataset
            and returns them, where there are several.
        replicas: processes that train together; None: `world_size()`, when the trainer asks.
    """

    def make(
        dataset: Any,
        batch_size: int,
        drop_last: bool,
        valid_label_columns: Sequence[str] | None = None,
        generator: Any = None,
        seed: int = 0,
    ) -> BalancedBatchSampler:
        del valid_label_columns, generator  # labels do not matter here, and the order follows from the seed alone
        counts = lengths(dataset) if callable(lengths) else lengths
        if len(counts) != len(dataset):
            raise SamplerError(
                f"there are {len(counts)} lengths for a dataset of {len(dataset)} rows; pass one for every row, or a "
                "function of the dataset where there are several"
            )
        count = world_size() if replicas is None else replicas
        return BalancedBatchSampler(counts, batch_size, replicas=count, seed=seed, drop_last=drop_last)

    return make
