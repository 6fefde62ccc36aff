# SPDX-License-Identifier: Apache-2.0
"""The list of attention tasks that tests.support.attention_tasks makes: nothing is missing or double, and it fits."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.attention_tasks import ROWS, WIDTH, attention_tasks, most_entries, starts_of

from .expressions import ExpressionBuilder, Size
from .plugin_abi import PluginLibrary

MULTIPROCESSORS = (1, 20, 114, 132, 170, 188)


def batch(draw: random.Random) -> tuple[list[int], int, int, int]:
    """Lengths, tokens, heads and multiprocessors."""
    longest = draw.choice([1, 64, 65, 193, 512, 1500])
    lengths = [draw.choice([0, draw.randint(-2, longest), longest]) for _ in range(draw.randint(0, 20))]
    total = sum(max(length, 0) for length in lengths)
    tokens = max(0, total + draw.choice([0, 1, 63, 64, 500, -total // 3]))
    return lengths, tokens, draw.choice([1, 2, 7, 16]), draw.choice(MULTIPROCESSORS)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_of_every_head_is_in_one_task(seed: int) -> None:
    lengths, tokens, heads, multiprocessors = batch(random.Random(seed))
    tasks = attention_tasks(lengths, tokens, heads, multiprocessors, causal=seed % 2 == 1)
    starts = starts_of(lengths, tokens)
    seen: Counter[tuple[int, int]] = Counter()
    filler: Counter[int] = Counter()
    for task in tasks:
        if task.length == 0:
            filler.update(range(task.begin, task.begin + task.first))
            continue
        assert task.begin in starts
        assert task.heads * task.groups * task.splits <= WIDTH
        assert task.splits <= -(-task.length // 128)  # every share of the keys has at least one key
        rows = range(task.first, min(task.first + task.groups * ROWS, task.length))
        seen.update((task.begin + row, task.head + head) for row in rows for head in range(task.heads))
    assert seen == Counter((token, head) for token in range(starts[-1]) for head in range(heads))
    assert filler == Counter(range(starts[-1], tokens))
    assert len(tasks) + 1 <= most_entries(tokens, len(lengths), heads)


def test_what_costs_most_comes_first() -> None:
    lengths = [200, 513, 512, 130, 512]
    tasks = [(t.length, t.groups, t.heads) for t in attention_tasks(lengths, sum(lengths), 2, 1)]
    whole = [(513, 3, 1)] * 6 + [(512, 3, 1)] * 8  # 9 and 8 half steps for 3 warpgroups
    assert tasks == [*whole, *[(512, 2, 1)] * 4, *[(200, 3, 1)] * 2, (200, 1, 2), *[(130, 3, 1)] * 2]


def test_causal_parts_cost_what_they_see() -> None:
    lengths = [512, 1024]
    tasks = attention_tasks(lengths, sum(lengths), 1, 1, causal=True)
    ends = [min(task.first + task.groups * ROWS, task.length) for task in tasks if task.groups == WIDTH]
    assert ends == sorted(ends, reverse=True)


def test_causal_parts_that_are_left_are_the_first_rows() -> None:
    lengths = [512, 1024]  # 8 and 16 groups of rows
    tasks = attention_tasks(lengths, sum(lengths), 1, 1, causal=True)
    assert [(task.length, task.first, task.groups) for task in tasks if task.groups < WIDTH] == [
        (512, 0, 2),
        (1024, 0, 1),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_plugin_makes_room_by_the_same_formula(library: PluginLibrary, seed: int) -> None:
    draw = random.Random(seed)
    tokens, batch, heads = draw.randint(0, 300_000), draw.randint(0, 9000), draw.choice([1, 12, 4096])
    attributes = {"has_extent": 0, "has_positions": 0, "has_tasks": 1, "num_heads": heads}
    plugin = library.create("PadfreeSchedule", attributes)
    assert plugin is not None
    shapes = ExpressionBuilder(counted=0).output_shapes(plugin, [[Size(batch)], [Size(tokens)]])
    assert shapes == [(batch + 1,), (most_entries(tokens, batch, heads), 4)]
    plugin.destroy()


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("length", [1, 64, 65, 128, 129, 192, 193, 257])
@pytest.mark.parametrize("heads", [1, 3, 16])
def test_there_is_room_for_the_least_favourable_lengths(length: int, heads: int, multiprocessors: int) -> None:
    for count in (1, 2, 31, 200):
        tokens = count * length
        tasks = attention_tasks([length] * count, tokens, heads, multiprocessors)
        assert len(tasks) + 1 <= most_entries(tokens, count, heads)
