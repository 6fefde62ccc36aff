# SPDX-License-Identifier: Apache-2.0
"""The tasks whose cost is measured: of one kind, within their sequences, none twice."""

from __future__ import annotations

import pytest

from benchmarks.attention.task_costs import HEADS, KINDS, tasks_of
from tests.support.attention_tasks import ROWS, WIDTH


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [192, 320, 1024])
def test_tasks_of_one_kind(kind: str, length: int) -> None:
    heads, groups = KINDS[kind]
    tasks = tasks_of(300, length, heads, groups)
    assert len(tasks) == len(set(tasks)) == 300
    assert heads * groups <= WIDTH
    for task in tasks:
        assert (task.length, task.heads, task.groups, task.splits) == (length, heads, groups, 1)
        assert task.first + (groups - 1) * ROWS < length
        assert task.head + heads <= HEADS
