# SPDX-License-Identifier: Apache-2.0
"""The barriers of PadfreeLinear's kernel with resident input, sm90/resident.cuh, played in random orders.

A block takes ranges of tiles. Input stays for a range, weights pass through a ring, and two warpgroups take the tiles
in turns. Blocks of a cluster with the same tokens fetch input together, those with the same features weights. A play
goes wrong for the same reasons as in linear_barriers.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .barrier_plays import GROUPS, WARPS, Barrier, Blocks, Message, Thread, WrongError


@dataclass(frozen=True)
class Play:
    """A cluster of features x tokens blocks, and its work.

    ring: stages of weights. depth: stages of the reduction. ranges: tiles of every range, for every column of blocks.
    in_ping_pong: whether a warpgroup waits for the other. waits_to_leave: whether one that has no tile of a range waits
    for the input that it leaves. stays: whether a block stays until all messages that it may get have come.
    """

    features: int
    tokens: int
    ring: int
    depth: int
    ranges: tuple[tuple[int, ...], ...]
    in_ping_pong: bool = True
    waits_to_leave: bool = True
    stays: bool = True


@dataclass
class Block:
    """One block's barriers, and its shared memory: for each slot, the number of the stage or range that it holds."""

    full: list[Barrier]
    empty: list[Barrier]
    input_full: list[Barrier]
    input_empty: list[Barrier]
    weights: list[dict[int, int]]
    inputs: list[dict[int, int]]
    readers: dict[tuple[str, int, int, int], int]


class NamedBarrier:
    """One of a block's named barriers, at which some warps wait and others only arrive."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.generation = arrivals, 0
        self.arrived: set[tuple[int, int]] = set()

    def arrive(self, warp: tuple[int, int]) -> int:
        """Returns the generation that this warp belongs to."""
        if warp in self.arrived:
            raise WrongError("a warp came to a named barrier twice")
        generation = self.generation
        self.arrived.add(warp)
        if len(self.arrived) == self.arrivals:
            self.arrived.clear()
            self.generation += 1
        return generation


class Cluster(Blocks):
    """All blocks at work."""

    def __init__(self, play: Play, rng: random.Random) -> None:
        super().__init__(rng, play.features, play.tokens, stays=play.stays)
        self.play = play
        count = len(self.same_tokens)
        self.blocks = [
            Block(
                full=[Barrier(1) for _ in range(play.ring)],
                empty=[Barrier(play.tokens * WARPS) for _ in range(play.ring)],
                input_full=[Barrier(1) for _ in range(play.depth)],
                input_empty=[Barrier(play.features * GROUPS * WARPS) for _ in range(play.depth)],
                weights=[{} for _ in range(play.ring)],
                inputs=[{} for _ in range(play.depth)],
                readers={},
            )
            for _ in range(count)
        ]
        self.turns = [[NamedBarrier(GROUPS * WARPS) for _ in range(GROUPS)] for _ in range(count)]

    def ranges(self, b: int) -> tuple[int, ...]:
        """The number of tiles in each of this block's ranges."""
        return self.play.ranges[b % self.play.features]

    def threads(self) -> list[list[Thread]]:
        """For every block, the threads that fetch and those that multiply."""
        return [
            [
                self.fetch_weights(b),
                self.fetch_inputs(b),
                *(self.consume(b, group, warp) for group in range(GROUPS) for warp in range(WARPS)),
            ]
            for b in range(len(self.blocks))
        ]

    def fetch_weights(self, b: int) -> Thread:
        """The thread of a block that fetches its share of the weights."""
        play, block = self.play, self.blocks[b]
        stages = sum(self.ranges(b)) * play.depth
        for number in range(stages + play.ring if play.stays else stages):
            index, parity = number % play.ring, number // play.ring & 1
            while not block.empty[index].is_over(parity ^ 1):
                yield False
            if number >= stages:
                continue
            block.full[index].arrive(play.tokens)
            self.messages += [self.copy(c, "W", index, b, number) for c in self.same_features[b]]
            yield True

    def fetch_inputs(self, b: int) -> Thread:
        """The thread of a block that fetches its share of the input."""
        play, block = self.play, self.blocks[b]
        count = len(self.ranges(b))
        for number in range(count + 1 if play.stays else count):
            for index in range(play.depth):
                while not block.input_empty[index].is_over(number & 1 ^ 1):
                    yield False
                if number == count:
                    continue
                block.input_full[index].arrive(play.features)
                self.messages += [self.copy(c, "x", index, b, number) for c in self.same_tokens[b]]
                yield True

    def copy(self, b: int, what: str, index: int, by: int, number: int) -> Message:
        """A copy on its way."""

        def land() -> None:
            self.check_there(b)
            block = self.blocks[b]
            if any(read[:2] == (what, index) and of != number for read, of in block.readers.items()):
                raise WrongError(f"{what} of block {b} was written while it was read")
            (block.weights if what == "W" else block.inputs)[index][by] = number
            (block.full if what == "W" else block.input_full)[index].complete(1)

        return land

    def arrival(self, b: int, what: str, index: int) -> Message:
        """The message to a block that something has been left."""

        def land() -> None:
            self.check_there(b)
            (self.blocks[b].empty if what == "W" else self.blocks[b].input_empty)[index].arrive()

        return land

    def consume(self, b: int, group: int, warp: int) -> Thread:
        """A warp in a warpgroup that multiplies."""
        play, block, number, turn = self.play, self.blocks[b], 0, 0
        is_first_of_all = True
        total = sum(self.ranges(b))

        def leave(stage: int, location: int, *, with_input: bool) -> None:
            self.messages += [self.arrival(c, "W", stage % play.ring) for c in self.same_features[b]]
            del block.readers["W", stage % play.ring, group, warp]
            if with_input:
                self.messages += [self.arrival(c, "x", location) for c in self.same_tokens[b]]

        for of_range, tiles in enumerate(self.ranges(b)):
            parity = of_range & 1
            if tiles == 1 and turn != group:
                for location in range(play.depth):
                    while play.waits_to_leave and not block.input_full[location].is_over(parity):
                        yield False
                    self.messages += [self.arrival(c, "x", location) for c in self.same_tokens[b]]
                    yield True
            for tile in range(tiles):
                mine, turn = turn == group, turn ^ 1
                if not mine:
                    number += play.depth
                    continue
                if play.in_ping_pong and (group or not is_first_of_all):
                    generation = self.turns[b][group].arrive((group, warp))
                    while self.turns[b][group].generation == generation:
                        yield False
                is_first_of_all = False
                is_last = tile + GROUPS >= tiles
                for location in range(play.depth):
                    while not block.input_full[location].is_over(parity) and tile < GROUPS:
                        yield False
                    ring_place, ring_parity = number % play.ring, number // play.ring & 1
                    while not block.full[ring_place].is_over(ring_parity):
                        yield False
                    block.readers["W", ring_place, group, warp] = number
                    block.readers["x", location, group, warp] = of_range
                    if any(block.weights[ring_place].get(c) != number for c in self.same_features[b]):
                        raise WrongError(f"block {b} read weights that had not come")
                    if any(block.inputs[location].get(c) != of_range for c in self.same_tokens[b]):
                        raise WrongError(f"block {b} read input that had not come")
                    yield True
                    if location:
                        del block.readers["x", location - 1, group, warp]
                        leave(number - 1, location - 1, with_input=is_last)
                    number += 1
                if play.in_ping_pong and number < total * play.depth:
                    self.turns[b][group ^ 1].arrive((group, warp))
                yield True
                del block.readers["x", play.depth - 1, group, warp]
                leave(number - 1, play.depth - 1, with_input=is_last)


def failure_of(play: Play, seed: int) -> str:
    """How a play goes wrong in one random order; empty if it does not."""
    return Cluster(play, random.Random(seed)).failure()
