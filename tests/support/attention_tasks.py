# SPDX-License-Identifier: Apache-2.0
"""The list of tasks that PadfreeSchedule makes for the Hopper attention kernel, in plain Python (attention/task.h)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROWS, KEYS, WIDTH = 64, 128, 3
"""Query rows of a group, keys of a step, warpgroups of a block."""
CAUSAL_SLICES = 16
"""The most slices of similar cost into which the full parts of a sequence are divided with causal attention."""
WARPS = 16
"""Warps of the block that makes the list."""
CLASSES = 256
"""Classes of cost; all tasks that cost more than the last class are treated alike when they are ordered."""
MAX_MULTIPROCESSORS = 170


@dataclass(frozen=True)
class Task:
    """Rows of one sequence for the warpgroups of one block; with length 0, `first` rows of filler."""

    begin: int
    length: int
    first: int
    head: int
    heads: int
    groups: int
    splits: int

    def pack(self) -> list[int]:
        """The four integers of an entry."""
        parts = self.head | self.heads << 16 | self.groups << 20 | self.splits << 24
        return [self.begin, self.length, self.first, parts]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def starts_of(seq_lens: Sequence[int], tokens: int) -> list[int]:
    """cu_seqlens: negative lengths count as 0, and no sum exceeds the tokens."""
    starts = [0]
    for length in seq_lens:
        starts.append(min(starts[-1] + max(length, 0), tokens))
    return starts


def attention_tasks(
    seq_lens: Sequence[int], tokens: int, heads: int, multiprocessors: int, *, causal: bool = False
) -> list[Task]:
    """The tasks in order: the most expensive class first, within a class in the order of sequences, filler last.

    causal: rows see no keys after their own. Then a task costs what the keys up to its last row do, and within a class
    the sequences that a warp of the kernel takes together are in the order of slices.
    """
    starts = starts_of(seq_lens, tokens)
    lengths = [end - begin for begin, end in itertools.pairwise(starts)]
    multiprocessors = min(multiprocessors, MAX_MULTIPROCESSORS)
    everything = heads * sum(_ceil(length, ROWS) for length in lengths)
    few = everything < WIDTH * multiprocessors
    most = min(max(_ceil(everything, multiprocessors), 1), WIDTH) if few else WIDTH
    of_warp = max(_ceil(len(lengths), WARPS), 1)
    results: list[tuple[tuple[int, ...], Task]] = []
    for number, (at, length) in enumerate(zip(starts, lengths, strict=False)):
        for task_class, piece, task in _cut(at, length, heads, most, few, causal):
            together = (number // of_warp, number % of_warp // 32, piece) if causal else ()
            results.append(((-task_class, *together), task))
    results.sort(key=lambda entry: entry[0])
    filler = [Task(at, 0, min(ROWS, tokens - at), 0, 1, 1, 1) for at in range(starts[-1], tokens, ROWS)]
    return [task for _, task in results] + filler


def _cost(half_steps: int, heads: int, warpgroups: int) -> int:
    """The cost in 0.05 us: what each half step adds, and what a task takes besides (schedule/tasks.cuh)."""
    if warpgroups == 1:
        return 8 * half_steps + 17
    if heads == 1 and warpgroups == 2:
        return 10 * half_steps + 24
    return 13 * half_steps + (52 if heads == 3 else 24)


def _class(cost: int, *, left: bool) -> int:
    """Eight classes per doubling of the cost, separate ones for full tasks and for what is left of a sequence."""
    mantissa, exponent = math.frexp(cost)
    return min(2 * (8 * (exponent - 1) + int(16 * mantissa) - 8) + (not left), CLASSES - 1)


def _cut(begin: int, length: int, heads: int, most: int, few: bool, causal: bool) -> Iterator[tuple[int, int, Task]]:
    """The tasks of one sequence, each with its class and its slice."""
    left, first, steps = _ceil(length, ROWS), 0, _ceil(length, KEYS)
    full_parts, remainder = divmod(left, most)
    parts_of_slice = max(_ceil(full_parts, CAUSAL_SLICES), 1)
    while left > 0:
        groups = min(left, most)
        each = 1
        if groups == 1 < most:
            each = most if steps == 1 or (few and steps == 2) else 2
        splits = 2 if most == 1 and steps > 1 else 1
        seen, piece, row = _ceil(length, KEYS // 2), _ceil(full_parts, parts_of_slice), first
        if causal and groups == most:  # up to the last row of the slice
            piece = first // (most * ROWS) // parts_of_slice
            seen = remainder + min((piece + 1) * parts_of_slice, full_parts) * most
            row = first + remainder * ROWS
        elif causal:  # the first rows, which see the fewest keys
            seen, row = remainder, 0
        half_steps = _ceil(seen, splits)
        task_class = _class(_cost(half_steps, each, each * groups * splits), left=groups < most)
        for head in range(0, heads, each):
            yield task_class, piece, Task(begin, length, row, head, min(each, heads - head), groups, splits)
        left, first = left - groups, first + groups * ROWS


def entries_of(tasks: Sequence[Task]) -> list[list[int]]:
    """The list as it is in memory, including entry 0."""
    return [[len(tasks), 0, 0, 0], *(task.pack() for task in tasks)]


def most_entries(tokens: int, batch: int, heads: int) -> int:
    """Rows of the tensor that holds a list, enough for any lengths."""
    return 1 + 512 + (tokens // (WIDTH * ROWS) + batch) * heads + tokens // ROWS + 1
