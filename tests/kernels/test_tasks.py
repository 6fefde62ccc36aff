"""The task lists of the schedule kernel: exactly those of tests.support.attention_tasks, and nothing beyond them."""

# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Sequence

import pytest
import torch

from tests.support.attention_tasks import attention_tasks, entries_of, most_entries, starts_of
from tests.support.launchers import schedule, task_list_entries

from .cases import DEVICE, LENGTHS, POISON, assert_guards, poisoned_output


def check_list(lengths: Sequence[int], tokens: int, heads: int, multiprocessors: int) -> None:
    """Compares the kernel's lists and prefix sums with plain Python."""
    for causal in (False, True):
        _check_list(lengths, tokens, heads, multiprocessors, causal)


def _check_list(lengths: Sequence[int], tokens: int, heads: int, multiprocessors: int, causal: bool) -> None:
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    cu_seqlens, cu_buffer = poisoned_output((len(lengths) + 1,), torch.int32)
    size = task_list_entries(tokens, len(lengths), heads)
    assert size == most_entries(tokens, len(lengths), heads)
    tasks, buffer = poisoned_output((size, 4), torch.int32)
    schedule(seq_lens, cu_seqlens, tokens, tasks=tasks, heads=heads, multiprocessors=multiprocessors, causal=causal)
    torch.cuda.synchronize()
    assert_guards(cu_buffer)
    assert_guards(buffer)
    assert cu_seqlens.tolist() == starts_of(lengths, tokens)
    listed = attention_tasks(lengths, tokens, heads, multiprocessors, causal=causal)
    expected = torch.tensor(entries_of(listed), dtype=torch.int32)
    count = len(expected)
    assert torch.equal(tasks[:count].cpu(), expected)
    assert bool((tasks[count:] == POISON[torch.int32]).all())


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("heads", [1, 3, 12, 16])
@pytest.mark.parametrize("filler", [0, 1, 200])
def test_task_list(name: str, heads: int, filler: int) -> None:
    check_list(LENGTHS[name], sum(LENGTHS[name]) + filler, heads, 132)


@pytest.mark.parametrize("seed", range(20))
def test_task_list_of_random_lengths(seed: int) -> None:
    draw = random.Random(seed)
    longest = draw.choice([64, 65, 193, 512, 5000])
    count = draw.choice([0, 1, 2, 31, 33, 300])
    lengths = [draw.choice([0, draw.randint(-2, longest)]) for _ in range(count)]
    tokens = max(0, sum(lengths) + draw.choice([0, 64, 500, -100]))
    check_list(lengths, tokens, draw.choice([1, 7, 12, 16]), draw.choice([1, 20, 114, 132, 188]))


@pytest.mark.parametrize(
    ("lengths", "tokens", "heads"),
    [
        ([100, 5] * 512, 60000, 2),
        ([0] * 5000 + [64] + [0] * 3000 + [700], 1000, 12),
        ([3] * 9000, 27000, 4),
        ([262144], 262144, 4),
        ([40000, 33000, 32768, 32767, 50000], 200000, 2),
        ([1_048_575, 1_100_000, 1_048_577], 3_200_000, 1),  # costs beyond the last class
        ([300, 70], 500, 4096),
        ([2**31 - 1, 2**31 - 1, -(2**31), 5], 1000, 12),
        ([], 0, 12),
        ([], 130, 12),
    ],
    ids=lambda value: str(value)[:20],
)
def test_task_list_of_extremes(lengths: list[int], tokens: int, heads: int) -> None:
    check_list(lengths, tokens, heads, 132)


def test_a_list_without_room_is_refused() -> None:
    seq_lens = torch.tensor([5], dtype=torch.int32, device=DEVICE)
    cu_seqlens, _ = poisoned_output((2,), torch.int32)
    tasks, buffer = poisoned_output((task_list_entries(5, 1, 2) - 1, 4), torch.int32)
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        schedule(seq_lens, cu_seqlens, 5, tasks=tasks, heads=2)
    torch.cuda.synchronize()
    assert bool((buffer == POISON[torch.int32]).all())
