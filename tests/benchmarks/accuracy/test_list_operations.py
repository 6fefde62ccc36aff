# SPDX-License-Identifier: Apache-2.0
"""Nested list operations: answers and depths are right, lengths vary, and any number of workers gives the same."""

from __future__ import annotations

import numpy as np

from benchmarks.accuracy import list_operations as task


def evaluate(ids: list[int]) -> int:
    """The answer of a sequence, computed with a stack."""
    stack: list[list[int]] = []
    for token in ids[1:]:
        if token >= task.FIRST_DIGIT:
            stack[-1].append(token - task.FIRST_DIGIT)
        elif token >= task.FIRST_OPERATION:
            stack.append([token])
        else:
            operation, *values = stack.pop()
            value = list(task.OPERATIONS.values())[operation - task.FIRST_OPERATION](values)
            if not stack:
                return value
            stack[-1].append(value)
    raise AssertionError("the list is not closed")


def test_answers_and_depths() -> None:
    actual = task.examples(300, 100, seed=5)
    lengths = [len(item.ids) for item in actual]
    assert max(lengths) > 8 * min(lengths)
    assert max(lengths) <= 100
    for item in actual:
        ids = item.ids.tolist()
        assert evaluate(ids) == item.answer
        opened = np.cumsum([task.FIRST_OPERATION <= token < task.FIRST_DIGIT for token in ids])
        closed = np.cumsum([token == task.CLOSE for token in ids])
        assert item.depths.tolist() == (opened - closed + [token == task.CLOSE for token in ids]).tolist()
    assert len({item.answer for item in actual}) == task.ANSWERS
    assert max(item.depths.max() for item in actual) == task.DEPTHS - 1


def test_the_same_for_any_number_of_workers() -> None:
    one, two = task.examples(1500, 60, seed=3), task.examples(1500, 60, seed=3, workers=2)
    assert all(np.array_equal(a.ids, b.ids) and a.answer == b.answer for a, b in zip(one, two, strict=True))
