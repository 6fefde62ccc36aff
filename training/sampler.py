# SPDX-License-Identifier: Apache-2.0
"""BalancedBatchSampler: every rank of a training gets as many rows, and nearly the same work, in every step.

Ranks wait for each other at the end of every step, so a step takes as long as its slowest rank. Without padding
that is the rank with the most tokens and squared lengths. The sampler deals the rows of a step by length, in a snake
(`runtime.batching.dealing`), and swaps a few where that brings ranks closer. Where the paper that it follows (Zeng et
al., arXiv:2208.08124) lets ranks exchange rows that they have read, nothing is exchanged here: every rank knows all
lengths and the seed, and finds the same shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.runtime.batching import even_out, snake

from .errors import SamplerError

IntArray = npt.NDArray[np.int64]


class BalancedBatchSampler:
    """The batches of all ranks, one after the other: rank 0's of the first step, rank 1's, ..., rank 0's of the second.

    This is what accelerate deals out, one batch to each process (`BatchSamplerShard`), and with it the trainers of
    transformers and sentence-transformers: give it to a DataLoader as `batch_sampler` and let them prepare that. Where
    nobody divides the batches, as in plain PyTorch, `for_rank` gives the batches of one rank; where accelerate is told
    `split_batches=True`, `joined` gives those of all ranks as one.

    An epoch's rows are shuffled and cut into steps of replicas x batch_size rows. If the last step is not full, it is
    dropped, or filled with the first rows of the epoch; with one replica its batch is just shorter. Ranks, machines and
    versions of NumPy agree: the order follows from the seed and the epoch by a bit generator whose stream is fixed, and
    stable sorts.

    Args:
        lengths: tokens of every row of the dataset, [N].
        batch_size: rows of one rank's batch.
        replicas: ranks, the processes that train together.
        seed: for the order of rows; the same on all ranks.
        shuffle: in another order every epoch; otherwise in that of the dataset.
        drop_last: drop a last step that is not full.

    Raises:
        SamplerError: invalid lengths, or sizes below 1.
    """

    def __init__(
        self,
        lengths: Sequence[int] | npt.NDArray[Any],
        batch_size: int,
        *,
        replicas: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self._lengths = _check(lengths)
        for name, value, least in (("batch_size", batch_size, 1), ("replicas", replicas, 1), ("seed", seed, 0)):
            if value < least:
                raise SamplerError(f"{name} is {value}, allowed: {least} or more; correct it")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.replicas = replicas
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        if not self.steps:
            raise SamplerError(
                f"{self._lengths.size} rows make no step of {replicas} x {batch_size}; allow a last step that is not "
                "full, or make batches smaller"
            )

    @property
    def steps(self) -> int:
        """Steps of an epoch: batches that every rank gets."""
        rows, step = self._lengths.size, self.replicas * self.batch_size
        return rows // step if self.drop_last else -(-rows // step)

    @property
    def sampler(self) -> BalancedBatchSampler:
        """Itself: accelerate sets the epoch on its batch sampler's `sampler`."""
        return self

    @property
    def digest(self) -> str:
        """A digest of all that shares follow from: ranks with equal digests get parts of the same steps."""
        content = f"{self.batch_size} {self.replicas} {self.seed} {self.shuffle} {self.drop_last}".encode()
        return hashlib.sha256(content + self._lengths.tobytes()).hexdigest()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration; all ranks set the same epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps * self.replicas

    def __iter__(self) -> Iterator[list[int]]:
        return chain.from_iterable(self.shares())

    def shares(self) -> Iterator[list[list[int]]]:
        """Every step of this epoch: for each rank the rows of its batch, in the epoch's order."""
        order = self._order()
        step = self.replicas * self.batch_size
        for start in range(0, self.steps * step, step):
            rows = order[start : start + step]
            if rows.size < step and self.replicas > 1:
                rows = np.concatenate([rows, np.resize(order, step - rows.size)])
            lengths = self._lengths[rows]
            parts = even_out(snake(lengths, self.replicas), lengths)
            yield [rows[np.sort(part)].tolist() for part in parts]

    def for_rank(self, rank: int) -> RankBatches:
        """The batches of one rank, where nobody else divides them: `DataLoader(dataset, batch_sampler=...)`.

        Raises:
            SamplerError: there is no such rank.
        """
        return RankBatches(self, rank)

    def joined(self) -> JoinedBatches:
        """The batches of all ranks of a step as one, rank 0's rows first: for `split_batches=True` of accelerate."""
        return JoinedBatches(self)

    def _order(self) -> IntArray:
        if not self.shuffle:
            return np.arange(self._lengths.size)
        # Raw words of a bit generator never change between versions of NumPy; what Generator makes of them may.
        words = np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch])).random_raw(self._lengths.size)
        return np.argsort(words, kind="stable")


class RankBatches:
    """The batches of one rank, whole: nobody may divide them again.

    Args:
        sampler: the one for all ranks, which has the epoch.
        rank: from 0 on.

    Raises:
        SamplerError: there is no such rank.
    """

    def __init__(self, sampler: BalancedBatchSampler, rank: int) -> None:
        if not 0 <= rank < sampler.replicas:
            raise SamplerError(f"rank is {rank}, allowed: 0..{sampler.replicas - 1}; pass this process's rank")
        self._sampler = sampler
        self.rank = rank
        self.drop_last = sampler.drop_last

    @property
    def batch_size(self) -> int:
        """Rows of a batch. Accelerate reads it to divide the batches again, which would be wrong; DataLoader does not.

        Raises:
            SamplerError: there is more than one rank.
        """
        if self._sampler.replicas > 1:
            raise SamplerError(
                f"these are the batches of rank {self.rank} of {self._sampler.replicas} alone, and dividing them among "
                "processes again would lose rows; give accelerate the BalancedBatchSampler itself, not for_rank's"
            )
        return self._sampler.batch_size

    def set_epoch(self, epoch: int) -> None:
        """As BalancedBatchSampler's."""
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self._sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        return (shares[self.rank] for shares in self._sampler.shares())


class JoinedBatches:
    """The batches of all ranks of a step as one, to be cut into equal parts in the order of ranks.

    Args:
        sampler: the one for all ranks, which has the epoch.
    """

    def __init__(self, sampler: BalancedBatchSampler) -> None:
        self.sampler = sampler
        self.batch_size = sampler.batch_size * sampler.replicas
        self.drop_last = sampler.drop_last

    def set_epoch(self, epoch: int) -> None:
        """As BalancedBatchSampler's."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self.sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        return (list(chain.from_iterable(shares)) for shares in self.sampler.shares())


def _check(lengths: Sequence[int] | npt.NDArray[Any]) -> IntArray:
    array = np.asarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise SamplerError(
            f"lengths are an array {list(array.shape)} of {array.dtype}, allowed: whole numbers [N], one or more; pass "
            "the tokens of every row"
        )
    if int(array.min()) < 0:
        raise SamplerError(f"the length of row {int(array.argmin())} is {int(array.min())}, allowed: 0 or more")
    return array.astype(np.int64)
