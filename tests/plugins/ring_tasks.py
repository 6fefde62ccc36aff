# SPDX-License-Identifier: Apache-2.0
"""Tasks of a block of the Hopper attention kernel, for the play of its barriers (ring_barriers.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass

GROUPS = 3
ARRIVALS = 6
STAGES = 4


@dataclass(frozen=True)
class Item:
    """A warpgroup's share of a task. own: steps that it computes; idle: steps after these. splits 0: filler."""

    stage: int
    stride: int
    own: int
    idle: int
    arrivals: int
    splits: int
    split: int


@dataclass(frozen=True)
class Play:
    """A block's tasks, as the items of every warpgroup, and how the kernel is built.

    readers: warpgroups that read each stage. first_stages: how many stages the warpgroups of its task begin with.
    query_slots: buffers of Q per warpgroup. without: what is left out: "checked" (the check of issued stages), "first"
    (that the stages which warpgroups begin with are loaded without waiting for others).
    """

    items: list[list[Item]]
    readers: list[int]
    first_stages: list[int]
    query_slots: int
    without: str = ""
    key_barriers: int = 2 * STAGES


def draw_play(rng: random.Random, *, query_slots: int, without: str = "") -> Play:
    """Some tasks of a large batch, or of a small one whose warpgroups split keys."""
    items: list[list[Item]] = [[] for _ in range(GROUPS)]
    readers: list[int] = []
    first_stages: list[int] = []
    few = rng.random() < 0.4
    for _ in range(rng.randint(1, 7)):
        steps = rng.choice((1, 1, 2, 3, 4, 6, 9))
        if rng.random() < 0.1:
            heads, groups, splits, steps = 1, 1, 1, 0
        elif few:
            heads, groups, splits = 1, 1, 2 if steps > 1 else 1
        else:
            heads, groups, splits = rng.choice(((1, 3, 1), (1, 3, 1), (1, 2, 1), (2, 1, 1), (3, 1, 1), (1, 1, 1)))
        own = [rng.randint(max(1, steps - 3), max(1, steps)) for _ in range(groups)]
        own[-1] = steps
        for share in range(heads * groups * splits):
            split, unit = (share, 0) if splits == 2 else (0, share)
            head = unit if groups == 1 else 0
            computed = (steps - 1 - split) // splits + 1 if groups == 1 else own[unit]
            idle = steps - computed if groups > 1 else 0
            first = len(readers) + split * heads + head
            arrivals = ARRIVALS // groups
            items[share].append(Item(first, splits * heads, computed, idle, arrivals, splits if steps else 0, split))
        readers += [groups] * (steps * heads)
        first_stages += [heads * splits] * (steps * heads)
    return Play(items, readers, first_stages, query_slots, without)
