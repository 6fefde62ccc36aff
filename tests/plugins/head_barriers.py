# SPDX-License-Identifier: Apache-2.0
"""Sums of heads that two blocks of a cluster have half of each (plugins/linear/sm90/head_sums.cuh), in random orders.

A thread for each token sends its sum to the other block, waits for all that the other block sends, and reads the one of
its token. Threads of a block wait for nothing else here, although in the kernel they come together for every tile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from .barrier_plays import Barrier, Blocks, Message, Thread, WrongError

BLOCKS = 2


class Halves(Blocks):
    """Two blocks, and what each has received in `places` that take turns: the tile of every token's sum."""

    def __init__(self, rng: random.Random, *, tokens: int, tiles: int, places: int) -> None:
        super().__init__(rng, BLOCKS, 1, stays=True)
        self.tokens, self.tiles, self.places = tokens, tiles, places
        self.barriers = [[Barrier(1) for _ in range(places)] for _ in range(BLOCKS)]
        self.received = [[[-1] * tokens for _ in range(places)] for _ in range(BLOCKS)]

    def threads(self) -> list[list[Thread]]:
        """For every block a thread for each token."""
        return [[self.exchange(b, token) for token in range(self.tokens)] for b in range(BLOCKS)]

    def exchange(self, b: int, token: int) -> Iterator[bool]:
        """A thread; True after a step, False while it waits."""
        for tile in range(self.tiles):
            place, parity = tile % self.places, tile // self.places & 1
            barrier = self.barriers[b][place]
            if token == 0:
                barrier.arrive(self.tokens)
                yield True
            self.messages.append(self.sum_of(1 - b, place, token, tile))
            yield True
            while not barrier.is_over(parity):
                yield False
            yield True
            if self.received[b][place][token] != tile:
                raise WrongError(f"block {b} read a sum of another tile")

    def sum_of(self, b: int, place: int, token: int, tile: int) -> Message:
        """A sum on its way to a block."""

        def land() -> None:
            self.check_there(b)
            self.received[b][place][token] = tile
            self.barriers[b][place].complete(1)

        return land


def failure_of(seed: int, *, places: int = 2) -> str:
    """How a play goes wrong; empty if it does not."""
    rng = random.Random(seed)
    return Halves(rng, tokens=rng.choice((1, 2, 5)), tiles=rng.choice((1, 2, 7)), places=places).failure()
