# SPDX-License-Identifier: Apache-2.0
"""The barriers of PadfreeLinear's Hopper kernel, played in random orders.

Its two sides are plugins/linear/sm90/producer.cuh and consumer.cuh. Blocks of a cluster fill each other's rings of
stages: blocks with the same tokens share x, those with the same features share W. Copies and arrivals at other blocks
take any time, and threads pause anywhere. A play goes wrong when a stage is written while somebody reads its content,
when something other than the expected content is read, when a copy or an arrival comes to a block that has ended, or
when nothing moves any more.

A warp is played by two of its lanes: the first tells others that it has left a stage, the second stands for those that
only wait. The matrix instructions hold them together, but there is none between a residual's arrival and its release.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .barrier_plays import GROUPS, WARPS, Barrier, Blocks, Message, Thread, WrongError

Piece = tuple[str, int]
"""A part of a stage: x, W or residual, and the block that fetched it."""


@dataclass(frozen=True)
class Play:
    """A cluster of features x tokens blocks, and its work.

    ring: stages in shared memory. depth: stages of the reduction in each of `tiles` tiles. residual: whether two
    stages after a tile's last hold its residual, which every block fetches for itself. paced: whether stages of the
    first round are requested only once the one two before has come. everybody: whether all blocks of the cluster are
    told that a stage is free, or only those that share something with the block. lanes_agree: whether a warp leaves a
    residual once all of its lanes have seen it, or once the first has. stays: whether a block stays until all of its
    stages have been left, or only until all blocks have done their work. stages_late: with several tiles that are
    deeper than this, how many stages the first warpgroup is ahead before the second begins.
    """

    features: int
    tokens: int
    ring: int
    depth: int
    tiles: int
    residual: bool
    paced: bool
    everybody: bool = True
    lanes_agree: bool = True
    stays: bool = True
    stages_late: int = 0


@dataclass
class Block:
    """One block's shared memory."""

    full: list[Barrier]
    empty: list[Barrier]
    content: list[dict[Piece, int]]
    readers: list[dict[tuple[int, int], int]]


class Cluster(Blocks):
    """All blocks at work. Stages are numbered through all tiles; `number % ring` is their slot."""

    def __init__(self, play: Play, rng: random.Random) -> None:
        super().__init__(rng, play.features, play.tokens, stays=play.stays)
        self.play = play
        count = len(self.same_tokens)
        sharing = [sorted({*self.same_tokens[b], *self.same_features[b]}) for b in range(count)]
        self.told = [list(range(count))] * count if play.everybody else sharing
        ring = range(play.ring)
        self.blocks = [
            Block(
                full=[Barrier(2) for _ in ring],
                empty=[Barrier(len(self.told[b]) * GROUPS * WARPS) for _ in ring],
                content=[{} for _ in ring],
                readers=[{} for _ in ring],
            )
            for b in range(count)
        ]
        self.ahead = [0] * count  # warps of every block's first warpgroup that are as far ahead as they have to be

    def threads(self) -> list[list[Thread]]:
        """For every block, the threads that fetch and those that multiply."""
        return [
            [
                self.fetch(b, "W", self.same_features[b], own=""),
                self.fetch(b, "x", self.same_tokens[b], own="residual"),
                *(lane for group in range(GROUPS) for warp in range(WARPS) for lane in self.lanes(b, group, warp)),
            ]
            for b in range(len(self.blocks))
        ]

    def fetch(self, b: int, what: str, to: list[int], own: str) -> Iterator[bool]:
        """One of a block's two threads that fetch; True after a step, False while it waits."""
        play, block, number = self.play, self.blocks[b], 0
        for _ in range(play.tiles):
            for of_tile in range(play.depth + GROUPS * play.residual):
                index, parity = number % play.ring, number // play.ring & 1
                while not block.empty[index].is_over(parity ^ 1):
                    yield False
                if of_tile < play.depth:
                    while play.paced and 2 <= number < play.ring and not block.full[index - 2].is_over(0):
                        yield False
                    block.full[index].arrive(len(to))
                    self.messages += [self.copy(c, index, (what, b), number) for c in to]
                else:
                    block.full[index].arrive(1 if own else 0)
                    self.messages += [self.copy(b, index, (own, b), number)] if own else []
                number += 1
                yield True
        for last in range(number, number + play.ring if play.stays and what == "W" else number):
            while not block.empty[last % play.ring].is_over(last // play.ring & 1 ^ 1):
                yield False

    def copy(self, b: int, index: int, piece: Piece, number: int) -> Message:
        """A copy on its way."""

        def land() -> None:
            self.check_there(b)
            block = self.blocks[b]
            if any(read != number for read in block.readers[index].values()):
                raise WrongError(f"a stage of block {b} was written while it was read")
            block.content[index][piece] = number
            block.full[index].complete(1)

        return land

    def arrival(self, b: int, index: int) -> Message:
        """The message to a block that a stage has been left."""

        def land() -> None:
            self.check_there(b)
            self.blocks[b].empty[index].arrive()

        return land

    def lanes(self, b: int, group: int, warp: int) -> list[Iterator[bool]]:
        """Two lanes of one warp in a warpgroup that multiplies."""
        seen = [0, 0]  # how many stages each of them has seen arrive
        return [self.consume(b, group, warp, seen), self.follow(b, seen)]

    def follow(self, b: int, seen: list[int]) -> Iterator[bool]:
        """The lane that only waits. It multiplies together with the other, which holds it back."""
        play, block = self.play, self.blocks[b]
        for number in range(play.tiles * (play.depth + GROUPS * play.residual)):
            index, parity = number % play.ring, number // play.ring & 1
            while seen[0] < number or not block.full[index].is_over(parity):
                yield False
            seen[1] = number + 1
            yield True

    def consume(self, b: int, group: int, warp: int, seen: list[int]) -> Iterator[bool]:
        """The lane that leaves stages."""
        play, block, number, held = self.play, self.blocks[b], 0, -1
        pieces = [("W", c) for c in self.same_features[b]] + [("x", c) for c in self.same_tokens[b]]

        def leave(stage: int) -> None:
            index = stage % play.ring
            del block.readers[index][group, warp]
            self.messages += [self.arrival(c, index) for c in self.told[b]]

        def take(wanted: list[Piece], *, together: bool) -> Iterator[bool]:
            index, parity = number % play.ring, number // play.ring & 1
            while not block.full[index].is_over(parity):
                yield False
            seen[0] = number + 1
            while together and seen[1] <= number:
                yield False
            block.readers[index][group, warp] = number
            if any(block.content[index].get(piece) != number for piece in wanted):
                raise WrongError(f"block {b} read a stage that had not come")
            yield True

        parts_ways = 0 < play.stages_late < play.depth and play.tiles > 1
        while parts_ways and group > 0 and self.ahead[b] < WARPS:
            yield False
        for tile in range(play.tiles):
            for of_tile in range(play.depth):
                if of_tile == 1 and held >= 0:
                    leave(held)
                    held = -1
                yield from take(pieces, together=True)
                if parts_ways and group == 0 and tile == 0 and of_tile == play.stages_late:
                    self.ahead[b] += 1
                if of_tile:
                    leave(number - 1)
                    yield True
                number += 1
            leave(number - 1)
            if held >= 0:
                leave(held)
            held = -1
            for of_group in range(GROUPS * play.residual):
                yield from take([("residual", b)], together=play.lanes_agree)
                if of_group == group and tile < play.tiles - 1:
                    held = number
                else:
                    leave(number)
                number += 1


def failure_of(play: Play, seed: int) -> str:
    """How a play goes wrong in one random order; empty if it does not."""
    return Cluster(play, random.Random(seed)).failure()
