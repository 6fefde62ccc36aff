# SPDX-License-Identifier: Apache-2.0
"""The barriers of the Hopper attention kernel for long sequences, played in random orders.

Its two sides are plugins/attention/sm90/producer.cuh and consumer.cuh. Copies take any time, threads pause anywhere.
A play goes wrong when memory is written while somebody reads its content, when something other than the expected
content is read, or when nothing moves any more.

Two warps stand for the four of a warpgroup. Each waits at barriers by itself, but a product is the whole group's: it
begins to read when the first warp has issued it, and ends after all have. The lanes that distribute items are three
threads here, which is what they may become; where they wait for each other, there are fewer orders.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .barrier_plays import WARPS, Barrier, Blocks, Message, Thread, WrongError
from .ring_tasks import ARRIVALS, GROUPS, STAGES, Item, Play, draw_play

ITEM_SLOTS = 4
Memory = tuple[str, int, int]
"""Shared memory: "k" or "v", a slot of the ring and 0, or "q", a warpgroup and a slot."""


@dataclass
class Product:
    """A product of a warpgroup: what it reads, and how many warps have issued it."""

    reads: list[tuple[Memory, object]]
    issued: int = 0
    done: bool = False


class Ring(Blocks):
    """A block at work."""

    def __init__(self, play: Play, rng: random.Random) -> None:
        super().__init__(rng, 1, 1, stays=True)
        self.play = play
        slots = range(play.query_slots)
        self.queries = [[Barrier(1) for _ in range(GROUPS)] for _ in slots]
        self.freed = [[Barrier(WARPS) for _ in range(GROUPS)] for _ in slots]
        self.keys = [Barrier(1) for _ in range(play.key_barriers)]
        self.values = [Barrier(1) for _ in range(STAGES)]
        self.empty = [Barrier(ARRIVALS) for _ in range(STAGES)]
        self.issued = STAGES
        self.items: list[list[object]] = [[None] * GROUPS for _ in range(ITEM_SLOTS)]
        self.content: dict[Memory, object] = {}
        self.reading: dict[Memory, int] = {}
        self.products: dict[tuple[int, int], Product] = {}
        self.met: dict[str, list[int]] = {}

    def threads(self) -> list[list[Thread]]:
        """All of them."""
        lanes = [self.distribute(g) for g in range(GROUPS)]
        warps = [self.consume(g, w) for g in range(GROUPS) for w in range(WARPS)]
        return [[*lanes, self.load("k"), self.load("v"), *warps]]

    # Memory

    def write(self, where: Memory, what: object) -> None:
        """Writes begin: nobody may read."""
        if self.reading.get(where):
            raise WrongError(f"{where} is written while it is read")
        self.content[where] = what

    def check(self, where: Memory, what: object) -> None:
        """Something is read."""
        if self.content.get(where) != what:
            raise WrongError(f"{where} holds {self.content.get(where)} instead of {what}")

    def copy_in(self, where: Memory, what: object, barrier: Barrier) -> None:
        """A copy that completes at a barrier, any time later."""
        self.write(where, "arriving")
        barrier.arrive(1)

        def land() -> None:
            if self.reading.get(where):
                raise WrongError(f"{where} is written while it is read")
            self.content[where] = what
            barrier.complete(1)

        self.messages.append(land)

    # The loading warps

    def wait(self, barrier: Barrier, parity: int) -> Iterator[bool]:
        """Until the phase of this parity is over."""
        while not barrier.is_over(parity):
            yield False
        yield True

    def distribute(self, group: int) -> Iterator[bool]:
        """Hands items to a warpgroup with their Q."""
        slots = self.play.query_slots
        for number, item in enumerate([*self.play.items[group], None]):
            slot = number % slots
            yield from self.wait(self.freed[slot][group], number // slots & 1 ^ 1)
            self.items[number % ITEM_SLOTS][group] = (number, item)
            yield True
            if item is None or item.splits == 0:
                self.queries[slot][group].arrive()
            else:
                self.copy_in(("q", group, slot), ("q", number), self.queries[slot][group])
            yield True

    def load(self, what: str) -> Iterator[bool]:
        """Loads K or V of all stages."""
        for stage in range(len(self.play.readers)):
            if stage < STAGES:
                yield from self.wait_first(what, stage)
            else:
                yield from self.wait(self.empty[stage % STAGES], stage // STAGES & 1 ^ 1)
            barrier = self.keys[stage % self.play.key_barriers] if what == "k" else self.values[stage % STAGES]
            self.copy_in((what, stage % STAGES, 0), stage, barrier)
            yield True
            if what == "k" and stage >= STAGES:
                self.issued = stage + 1
                yield True

    def wait_first(self, what: str, stage: int) -> Iterator[bool]:
        """In the first fill: until the keys before this stage have arrived."""
        first = 0 if self.play.without == "first" else self.play.first_stages[stage]
        before = stage - first if what == "k" else stage
        if before >= 0:
            yield from self.wait(self.keys[before], 0)

    # The warpgroups

    def meet(self, name: str, count: int) -> Iterator[bool]:
        """A named barrier: rounds are told apart by how many have come."""
        come = self.met.setdefault(name, [0])
        come[0] += 1
        until = -(-come[0] // count) * count
        yield True
        while come[0] < until:
            yield False

    def multiply(self, group: int, number: int, reads: list[tuple[Memory, object]]) -> Iterator[bool]:
        """A product, until it has ended."""
        product = self.products.setdefault((group, number), Product(reads))
        if product.issued == 0:
            for where, what in reads:
                self.check(where, what)
                self.reading[where] = self.reading.get(where, 0) + 1
        product.issued += 1
        if product.issued == WARPS:
            self.messages.append(self.end_of(product))
        yield True
        while not product.done:
            yield False

    def end_of(self, product: Product) -> Message:
        """When the product has ended."""

        def land() -> None:
            for where, what in product.reads:
                self.check(where, what)
                self.reading[where] -= 1
            product.done = True

        return land

    def wait_keys(self, stage: int) -> Iterator[bool]:
        count = self.play.key_barriers
        yield from self.wait(self.keys[stage % count], stage // count & 1)

    def release_stage(self, stage: int, warp: int, arrivals: int) -> None:
        if warp == 0:
            for _ in range(arrivals):
                self.empty[stage % STAGES].arrive()

    def consume(self, group: int, warp: int) -> Iterator[bool]:
        """A computing warp."""
        slots, products = self.play.query_slots, 0
        for number in range(len(self.play.items[group]) + 1):
            slot = number % slots
            yield from self.wait(self.queries[slot][group], number // slots & 1)
            held = self.items[number % ITEM_SLOTS][group]
            item = self.play.items[group][number] if number < len(self.play.items[group]) else None
            if held != (number, item):
                raise WrongError(f"warpgroup {group} found {held} instead of item {number}")
            if item is None or item.splits == 0:
                if item is None:
                    return
                self.freed[slot][group].arrive()
                continue
            stage, q = item.stage, (("q", group, slot), ("q", number))
            yield True
            while stage >= self.issued + STAGES and self.play.without != "checked":
                yield False
            yield from self.wait_keys(stage)
            yield from self.multiply(group, products, [q, (("k", stage % STAGES, 0), stage)])
            products += 1
            for _ in range(item.own - 1):
                yield from self.wait(self.values[stage % STAGES], stage // STAGES & 1)
                following = stage + item.stride
                yield from self.wait_keys(following)
                both = [q, (("v", stage % STAGES, 0), stage), (("k", following % STAGES, 0), following)]
                yield from self.multiply(group, products, both)
                products += 1
                self.release_stage(stage, warp, item.arrivals)
                stage = following
                yield True
            self.freed[slot][group].arrive()
            yield from self.wait(self.values[stage % STAGES], stage // STAGES & 1)
            yield from self.multiply(group, products, [(("v", stage % STAGES, 0), stage)])
            products += 1
            self.release_stage(stage, warp, item.arrivals)
            yield True
            last = stage
            for _ in range(item.idle):
                last += item.stride
                yield from self.wait_keys(last)
                yield from self.meet(f"group {group}", WARPS)
                self.release_stage(last, warp, item.arrivals)
                yield True
            if item.splits > 1:
                yield from self.combine(group, warp, item, stage)

    def combine(self, group: int, warp: int, item: Item, stage: int) -> Iterator[bool]:
        """The second warpgroup's results pass to the first."""
        exchange = ("exchange", warp, 0)
        if item.split > 0:
            self.write(exchange, (group, stage))
        yield from self.meet("combine", 2 * WARPS)
        if item.split == 0:
            self.reading[exchange] = self.reading.get(exchange, 0) + 1
            yield True
            self.reading[exchange] -= 1
        yield from self.meet("combine", 2 * WARPS)


def failure_of(seed: int, **options: object) -> str:
    """How a play goes wrong; empty if it does not."""
    rng = random.Random(seed)
    return Ring(draw_play(rng, **options), rng).failure()  # type: ignore[arg-type]
