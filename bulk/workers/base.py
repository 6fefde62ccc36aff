# SPDX-License-Identifier: Apache-2.0
"""What a driver asks of workers, wherever they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .worker import FinishedShard


@dataclass(frozen=True)
class ShardFinish:
    """A shard is on the disk."""

    worker: int
    done: FinishedShard


@dataclass(frozen=True)
class BatchProgress:
    """Batches of an unfinished shard that have run since the last such event."""

    worker: int
    shard: int
    rows: int
    tokens: int


@dataclass(frozen=True)
class Refusal:
    """A worker met something that trying again would not change; the message says what."""

    worker: int
    message: str


@dataclass(frozen=True)
class Loss:
    """A worker has ended by itself, with all that it had under way."""

    worker: int
    why: str


Event = ShardFinish | BatchProgress | Refusal | Loss


class Workers(Protocol):
    """A number of workers that are given shards."""

    @property
    def names(self) -> tuple[str, ...]:
        """What each is called in the report."""

    def is_ready(self, worker: int) -> bool:
        """Whether it takes shards; one that waits for a machine does not."""

    def give(self, worker: int, shard: int) -> None:
        """Hands a shard over to a worker that is ready."""

    def wait(self, timeout_s: float) -> list[Event]:
        """What has happened since; waits for something, but not longer than that."""

    def restart(self, worker: int) -> None:
        """Starts one anew that was lost."""

    def close(self, *, kill: bool) -> None:
        """Ends all of them, at once or in good order."""
