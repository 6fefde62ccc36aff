# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cluster and their barriers, played in random orders: the common part of models of kernels.

Threads are generators, which yield True after a step and False while they wait. Copies and arrivals on their way to
other blocks are messages, which take any time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

GROUPS, WARPS = 2, 2
"""Warpgroups that multiply, and warps in each: two warps stand for four."""
ROUNDS_OF_NOTHING = 20_000

Message = Callable[[], None]
Thread = Iterator[bool]


class WrongError(Exception):
    """The protocol failed; the message says how."""


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all announced bytes have come."""

    arrivals: int
    pending: int = 0
    bytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, expected_bytes: int = 0) -> None:
        """One thread arrives, and may announce bytes."""
        self.bytes += expected_bytes
        self.pending -= 1
        if self.pending < 0:
            raise WrongError("a barrier got more arrivals than it counts")
        self._end_phase()

    def complete(self, count: int) -> None:
        """Announced bytes have come."""
        self.bytes -= count
        self._end_phase()

    def is_over(self, parity: int) -> bool:
        """Whether the phase of this parity is over."""
        return self.phase & 1 != parity

    def _end_phase(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.arrivals


class Blocks:
    """The blocks of a cluster at work, `features` of them for the same tokens; subclasses give their `threads`.

    stays: whether a block has ended as soon as its own threads have, rather than once those of all blocks have.
    """

    def __init__(self, rng: random.Random, features: int, tokens: int, *, stays: bool) -> None:
        self.rng, self.stays = rng, stays
        every = range(features * tokens)
        self.same_tokens = [[c for c in every if c // features == b // features] for b in every]
        self.same_features = [[c for c in every if c % features == b % features] for b in every]
        self.messages: list[Message] = []
        self.running: list[int] = []  # threads of every block

    def threads(self) -> list[list[Thread]]:
        """The threads of every block."""
        raise NotImplementedError

    def failure(self) -> str:
        """How it goes wrong; empty if it does not."""
        try:
            self.run()
        except WrongError as error:
            return str(error)
        return ""

    def run(self) -> None:
        """Runs until all threads have ended. Raises WrongError."""
        of_block = self.threads()
        threads = [thread for some in of_block for thread in some]
        home = [b for b, some in enumerate(of_block) for _ in some]
        self.running = [len(some) for some in of_block]
        speeds = [self.rng.choice((1.0, 1.0, 1.0, 0.05)) for _ in threads]
        alive, nothing = list(range(len(threads))), 0
        while alive or self.messages:
            if self.messages and (not alive or self.rng.random() < 0.5):
                self.messages.pop(self.rng.randrange(len(self.messages)))()
                nothing = 0
                continue
            thread = self.rng.choice(alive)
            if self.rng.random() > speeds[thread]:
                continue
            try:
                nothing = 0 if next(threads[thread]) else nothing + 1
            except StopIteration:
                alive.remove(thread)
                self.running[home[thread]] -= 1
            if nothing > ROUNDS_OF_NOTHING:
                raise WrongError("nothing moves any more")

    def check_there(self, b: int) -> None:
        """Raises WrongError if a block that a copy or an arrival comes to has ended."""
        if not (self.running[b] if self.stays else any(self.running)):
            raise WrongError(f"something came to block {b}, which had ended")
