"""Rows of a table and their moments against float64 truth, and their schedule against the schedule's own kernels."""

# SPDX-License-Identifier: Apache-2.0
import ctypes
from dataclasses import dataclass

import pytest
import torch

from tests.support.launchers import DATA_TYPES, call, schedule, task_list_entries

from .cases import DEVICE, LENGTHS, assert_guards, assert_same_in_a_graph, generator, poisoned_output
from .norm_operands import normal
from .test_linear_norms import moments_of

TYPES = [torch.float16, torch.bfloat16]
WIDTHS = [64, 128, 640, 768, 832, 1024, 1152, 2048, 2560, 4096]
VOCABULARY = 300
HEADS = 16


@dataclass(frozen=True)
class Schedule:
    """A schedule that is made; the tensors are outputs."""

    seq_lens: torch.Tensor
    cu_seqlens: torch.Tensor
    positions: torch.Tensor | None = None
    tasks: torch.Tensor | None = None
    causal: bool = False


def token_rows(
    ids: torch.Tensor,
    table: torch.Tensor,
    y: torch.Tensor,
    moments: torch.Tensor | None = None,
    scale: float = 1.0,
    made: Schedule | None = None,
) -> None:
    """y [T,N] = table[ids] * scale; moments [N/64, T, 2] are those of y."""
    schedule_arguments = (None, None, None, None, 0, HEADS, 0, 0)
    if made is not None:
        room = 0 if made.tasks is None else len(made.tasks) - 1
        schedule_arguments = (
            made.seq_lens, made.cu_seqlens, made.positions, made.tasks, len(made.seq_lens), HEADS, room,
            int(made.causal),
        )  # fmt: skip
    call(
        "padfreeTokenRows", ids, table, y, moments, len(ids), *table.shape, ctypes.c_float(scale),
        DATA_TYPES[table.dtype], *schedule_arguments,
    )  # fmt: skip


def draw_ids(tokens: int) -> torch.Tensor:
    """Ids of which some lie outside the table."""
    ids = torch.randint(0, VOCABULARY, (tokens,), device=DEVICE, dtype=torch.int32, generator=generator())
    for start, outside in enumerate((-1, VOCABULARY, 2**31 - 1, -(2**31))):
        ids[start::29] = outside
    return ids


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", [1.0, 27.75])
def test_rows(dtype: torch.dtype, width: int, scale: float) -> None:
    """The products are rounded once, so that they are exact; so are the rows that are not scaled."""
    table = normal(VOCABULARY, width, dtype=dtype, seed=1)
    for tokens in (1, 7, 128, 513):
        ids = draw_ids(tokens)
        y, buffer = poisoned_output((tokens, width), dtype)
        moments, moments_buffer = poisoned_output((width // 64, tokens, 2), torch.float32)
        token_rows(ids, table, y, moments, scale)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert_guards(moments_buffer)
        inside = (ids >= 0) & (ids < VOCABULARY)
        rows = table[ids.clamp(0, VOCABULARY - 1).long()].float() * inside[:, None]
        assert torch.equal(y, (rows * scale).to(dtype))
        torch.testing.assert_close(moments.double(), moments_of(y), rtol=2e-5, atol=1e-5)
        alone, buffer = poisoned_output((tokens, width), dtype)
        token_rows(ids, table, alone, scale=scale)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert torch.equal(alone, y)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("filler", [0, 50])
@pytest.mark.parametrize("width", [768, 1024, 2560])
@pytest.mark.parametrize("name", [*LENGTHS, "as many as lanes", "one more", "negative", "none"])
def test_the_schedule_is_that_of_its_own_kernels(name: str, width: int, filler: int, causal: bool) -> None:
    """Beside the rows up to 32 sequences, and ahead of them for more."""
    others = {"as many as lanes": [40] * 32, "one more": [3] * 33, "negative": [5, -3, 7], "none": []}
    lengths = LENGTHS.get(name) or others[name]
    tokens, batch = sum(max(length, 0) for length in lengths) + filler, len(lengths)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    entries = task_list_entries(tokens, batch, HEADS)
    outputs = [poisoned_output(shape, torch.int32) for shape in ((batch + 1,), (tokens,), (entries, 4))]
    wanted = [poisoned_output(shape, torch.int32)[0] for shape in ((batch + 1,), (tokens,), (entries, 4))]
    (cu_seqlens, positions, tasks), buffers = zip(*outputs, strict=True)
    schedule(seq_lens, wanted[0], tokens, positions=wanted[1], tasks=wanted[2], heads=HEADS, causal=causal)
    table, ids = normal(VOCABULARY, width, dtype=torch.bfloat16, seed=1), draw_ids(tokens)
    y, buffer = poisoned_output((tokens, width), torch.bfloat16)
    alone = torch.empty_like(y)
    token_rows(ids, table, y, made=Schedule(seq_lens, cu_seqlens, positions, tasks, causal))
    token_rows(ids, table, alone)
    torch.cuda.synchronize()
    for guarded in (*buffers, buffer):
        assert_guards(guarded)
    for actual, expected in zip((cu_seqlens, positions, tasks), wanted, strict=True):
        assert torch.equal(actual, expected)
    assert torch.equal(y, alone)


def test_offsets_alone() -> None:
    seq_lens = torch.tensor([5, 0, 90], dtype=torch.int32, device=DEVICE)
    table, y = normal(VOCABULARY, 128, dtype=torch.float16, seed=1), torch.empty(100, 128, device=DEVICE).half()
    cu_seqlens, buffer = poisoned_output((4,), torch.int32)
    token_rows(draw_ids(100), table, y, made=Schedule(seq_lens, cu_seqlens))
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert cu_seqlens.tolist() == [0, 5, 5, 95]


def test_a_graph_gives_the_same_bits() -> None:
    lengths = LENGTHS["mixed"]
    seq_lens, ids = torch.tensor(lengths, dtype=torch.int32, device=DEVICE), draw_ids(sum(lengths))

    def run(table: torch.Tensor, *, separately: bool) -> torch.Tensor:
        for _ in range(4):
            y = torch.empty(len(ids), table.shape[1], device=DEVICE, dtype=table.dtype)
            offsets = torch.empty(len(lengths) + 1, device=DEVICE, dtype=torch.int32)
            made = Schedule(seq_lens, offsets, torch.empty_like(ids))
            token_rows(ids, table, y, torch.empty(16, len(ids), 2, device=DEVICE), 0.75, made)
            if separately:
                torch.cuda.synchronize()
            table.copy_(y[:VOCABULARY])
        return table

    assert_same_in_a_graph(run, normal(VOCABULARY, 1024, dtype=torch.bfloat16, seed=1))


def test_more_elements_than_an_int_counts() -> None:
    """2^31 elements of the table lie before the last row, and 2^31 of the results before theirs."""
    rows, width = 530_000, 4096
    table = torch.zeros(rows, width, device=DEVICE, dtype=torch.bfloat16)
    table[-1] = normal(width, dtype=torch.bfloat16, seed=2)
    ids, y = torch.zeros(rows, device=DEVICE, dtype=torch.int32), torch.full_like(table, float("nan"))
    ids[-2:] = rows - 1
    token_rows(ids, table, y)
    assert torch.equal(y[-2:], table[-1:].expand(2, width))
    assert bool((y[:-2] == 0).all())


@pytest.mark.parametrize("width", [32, 96, 1000])
def test_rejects_widths_without_a_kernel(width: int) -> None:
    table = torch.zeros(4, width, device=DEVICE, dtype=torch.float16)
    with pytest.raises(RuntimeError):
        token_rows(draw_ids(4), table, torch.empty_like(table))
