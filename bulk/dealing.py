# SPDX-License-Identifier: Apache-2.0
"""Which shard a worker gets next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from padfree.contract.data_files import PARQUET

from .manifest import Manifest


class Waiting:
    """Shards that nobody has.

    A row inside a row group is found by reading all rows before it. So a worker goes on where it is; others begin at
    groups that nobody has begun, or, when none is left, in the middle of the longest rest of a group.

    Args:
        manifest: what the shards are.
        shards: those that are to be done, in order.
    """

    def __init__(self, manifest: Manifest, shards: Iterable[int]) -> None:
        self._manifest = manifest
        self._shards_left = OrderedDict[int, None].fromkeys(shards)
        self._begin = OrderedDict[int, None].fromkeys(
            shard for shard in self._shards_left if not self._is_inside(shard)
        )
        self._last: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._shards_left)

    def take(self, worker: int) -> int:
        """A shard for a worker; there has to be one."""
        following = self._last.get(worker, len(self._manifest.shards)) + 1
        if following in self._shards_left and self._is_inside(following):
            shard = following
        else:
            shard = next(iter(self._begin)) if self._begin else self._middle()
        del self._shards_left[shard]
        self._begin.pop(shard, None)
        self._last[worker] = shard
        return shard

    def put_back(self, shards: Sequence[int]) -> None:
        """Shards of a worker that is gone: they are the first again."""
        for shard in reversed(shards):
            for waiting in (self._shards_left, *(() if self._is_inside(shard) else (self._begin,))):
                waiting[shard] = None
                waiting.move_to_end(shard, last=False)

    def _is_inside(self, shard: int) -> bool:
        """Whether it begins inside of a row group."""
        piece = self._manifest.shards[shard][0]
        return self._manifest.inputs[piece.file].format == PARQUET and piece.size > 0

    def _middle(self) -> int:
        """The middle of the longest rest; the worker that has begun it goes on with its first half."""
        shards = sorted(self._shards_left)
        cuts = [0, *(at for at, (one, other) in enumerate(pairwise(shards), 1) if other != one + 1), len(shards)]
        start, stop = max(pairwise(cuts), key=lambda run: run[1] - run[0])
        return shards[(start + stop) // 2]
