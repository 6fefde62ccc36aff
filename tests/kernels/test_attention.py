"""PadfreeAttention's kernels against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
import torch

from tests.support.launchers import Positions, attention, make_tasks

from .attention_cases import ROWS, TYPES, choose
from .cases import (
    DEVICE,
    LENGTHS,
    assert_accurate,
    assert_guards,
    assert_same_in_a_graph,
    cumulative,
    generator,
    poisoned_output,
    with_filler,
)

QKV_LAYOUTS = ["3HD", "H3D", "separate", "2HD"]
MANY_HEADS = 48
"""Heads enough for the mma kernel's tiles of 128 query rows in a batch of a few hundred tokens of long sequences."""


KERNELS = ["auto", "mma", "sm90", "short"]
SHAPES = [(3, 0), (MANY_HEADS, 4096), (3, 4096), (3, 64)]
"""Heads and max_seq_len: together they cover every tile shape of the tensor-core kernels."""


def make_operands(
    qkv_layout: str, tokens: int, heads: int, head_size: int, dtype: torch.dtype, spread: float, filler: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random Q, K and V as views [T + filler, H, D] of one tensor, or of two or three."""
    shape = (heads, 3, head_size) if qkv_layout == "H3D" else (3, heads, head_size)
    qkv = torch.randn(tokens, *shape, device=DEVICE, generator=generator()) * spread
    qkv = with_filler(qkv.to(dtype), filler)
    axis = 2 if qkv_layout == "H3D" else 1
    q, k, v = (part.squeeze(axis) for part in qkv.split(1, dim=axis))
    if qkv_layout == "separate":
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    elif qkv_layout == "2HD":
        q, k = torch.stack([q, k], 1).unbind(1)
    return q, k, v


def reference(operands: list[torch.Tensor], lengths: list[int], scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Plain softmax(QK^T * scale)V, one sequence after the other, in the given type."""
    q, k, v = (operand.to(dtype) for operand in operands)
    rows, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        for some in q[part].split(ROWS):
            scores = torch.einsum("qhd,khd->hqk", some, k[part]) * scale
            rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[part]).flatten(1))
        start += length
    return torch.cat(rows)


def check(
    lengths: list[int],
    *,
    heads: int = 3,
    head_size: int = 64,
    qkv_layout: str = "3HD",
    dtype: torch.dtype = torch.float16,
    filler: int = 37,
    spread: float = 1.0,
    max_seq_len: int = 0,
    with_bias: bool = False,
    kernel: str = "auto",
    key_factors: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Compares attention with the truth; `key_factors` gives what a token's key is multiplied by, from its position."""
    tokens = sum(lengths)
    operands = make_operands(qkv_layout, tokens, heads, head_size, dtype, spread, filler)
    if key_factors:
        positions = torch.cat([torch.arange(length, device=DEVICE) for length in lengths])
        operands[1][:tokens] *= key_factors(positions)[:, None, None].to(dtype)
    scale = head_size**-0.5
    biases = None
    biased = [operand[:tokens].double() for operand in operands]
    if with_bias:
        bias = torch.randn(3, heads, head_size, device=DEVICE, generator=generator(1)).to(dtype)
        biases = list(bias)
        biased = [operand + part.double() for operand, part in zip(biased, biases, strict=True)]
    y, buffer = poisoned_output((tokens + filler, heads * head_size), dtype)
    attention(operands, cumulative(lengths), y, scale=scale, max_seq_len=max_seq_len, biases=biases, kernel=kernel)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"
    truth = reference(biased, lengths, scale, torch.float64)
    plain = reference([operand.to(dtype) for operand in biased], lengths, scale, dtype)
    assert_accurate(y[:tokens], plain, truth)
    return y


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("heads", "max_seq_len"), SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lengths(name: str, dtype: torch.dtype, heads: int, max_seq_len: int, kernel: str) -> None:
    check(LENGTHS[name], dtype=dtype, heads=heads, max_seq_len=max_seq_len, kernel=choose(kernel, dtype))


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
@pytest.mark.parametrize(("heads", "max_seq_len"), SHAPES)
@pytest.mark.parametrize("kernel", ["sm90", "short"])
def test_lengths_of_narrow_heads(name: str, dtype: torch.dtype, heads: int, max_seq_len: int, kernel: str) -> None:
    """Heads of up to 32 columns use narrow panels in the Hopper kernels."""
    chosen = choose(kernel, dtype)
    check(LENGTHS[name], head_size=32, dtype=dtype, heads=heads, max_seq_len=max_seq_len, kernel=chosen)


def test_max_seq_len_is_a_hint_only() -> None:
    check(LENGTHS["one long"], heads=MANY_HEADS, max_seq_len=64)


@pytest.mark.parametrize("head_size", [8, 16, 24, 32, 40, 64, 72, 80, 96, 104, 128])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_head_sizes(head_size: int, dtype: torch.dtype, kernel: str) -> None:
    chosen = choose(kernel, dtype)
    for heads, max_seq_len in SHAPES:
        check(LENGTHS["mixed"], head_size=head_size, dtype=dtype, heads=heads, max_seq_len=max_seq_len, kernel=chosen)


@pytest.mark.parametrize("qkv_layout", QKV_LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_qkv_layouts(qkv_layout: str, dtype: torch.dtype, with_bias: bool, kernel: str) -> None:
    for heads, head_size, max_seq_len in ((3, 64, 0), (MANY_HEADS, 40, 4096), (3, 128, 0), (3, 32, 0), (3, 24, 64)):
        check(
            LENGTHS["mixed"],
            qkv_layout=qkv_layout,
            dtype=dtype,
            with_bias=with_bias,
            heads=heads,
            head_size=head_size,
            max_seq_len=max_seq_len,
            kernel=choose(kernel, dtype),
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_wide_scores_do_not_overflow(kernel: str) -> None:
    check(LENGTHS["mixed"], spread=30.0, kernel=choose(kernel, torch.float16))


@pytest.mark.parametrize("head_size", [32, 64, 128, 256])
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
@pytest.mark.parametrize(("kernel", "max_seq_len"), [*((kernel, 0) for kernel in KERNELS), ("short", 128)])
@pytest.mark.parametrize("course", ["rising", "falling", "a few"])
def test_scores_far_above_those_before(
    course: str, kernel: str, max_seq_len: int, dtype: torch.dtype, head_size: int
) -> None:
    """Exponentials are relative to the largest score so far, so that earlier sums have to be rescaled when it grows."""
    if head_size > 128 and kernel != "mma":
        pytest.skip("test_attention_wide.py has Hopper's kernel for heads of 256")
    factors: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "rising": lambda position: 1 + position / 16,
        "falling": lambda position: 24 / (1 + position / 16),
        "a few": lambda position: torch.where(position % 67 == 66, 40.0, 1.0),
    }
    check(
        [700, 129, 67, 1, 400, 256, 193],
        head_size=head_size,
        dtype=dtype,
        max_seq_len=max_seq_len,
        kernel=choose(kernel, dtype),
        key_factors=factors[course],
    )


@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize(("kernel", "max_seq_len"), [*((kernel, 0) for kernel in KERNELS), ("short", 128)])
def test_same_sequence_alone_and_in_a_batch_gives_the_same_bits(kernel: str, max_seq_len: int, head_size: int) -> None:
    """In the batch the short kernel's blocks are whole sequences; alone, each block is a part of one."""
    choose(kernel, torch.float16)
    lengths = LENGTHS["mixed"] * 2
    width = MANY_HEADS * head_size
    operands = make_operands("3HD", sum(lengths), MANY_HEADS, head_size, torch.float16, 1.0, 0)
    batch, _ = poisoned_output((sum(lengths), width), torch.float16)
    attention(operands, cumulative(lengths), batch, scale=0.125, max_seq_len=max_seq_len, kernel=kernel)
    start = 0
    for length in lengths:
        part = [operand[start : start + length] for operand in operands]
        alone, _ = poisoned_output((length, width), torch.float16)
        attention(part, cumulative([length]), alone, scale=0.125, max_seq_len=max_seq_len, kernel=kernel)
        assert torch.equal(alone, batch[start : start + length])
        start += length


@pytest.mark.parametrize("head_size", [32, 64, 96, 128, 256])
def test_tall_and_ordinary_tiles_of_the_mma_kernel_give_the_same_bits(head_size: int) -> None:
    lengths = LENGTHS["mixed"]
    ordinary = check(lengths, heads=MANY_HEADS, head_size=head_size, kernel="mma")
    tall = check(lengths, heads=MANY_HEADS, head_size=head_size, max_seq_len=4096, kernel="mma")
    assert torch.equal(ordinary, tall)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (-1, 70)], ids=str)
@pytest.mark.parametrize("head_size", [136, 256])
def test_few_and_many_tiles_of_the_mma_kernel_give_the_same_bits(head_size: int, window: tuple[int, int]) -> None:
    """Heads above 128 have tiles of 32 rows where tiles are few, here those of two heads, and of 64 rows otherwise."""
    for lengths in (LENGTHS["mixed"], LENGTHS["one long"], LENGTHS["tile edges"]):
        operands = make_operands("3HD", sum(lengths), MANY_HEADS, head_size, torch.float16, 1.0, 0)
        results = []
        for heads in (MANY_HEADS, 2):
            y, _ = poisoned_output((sum(lengths), heads * head_size), torch.float16)
            some = [operand[:, :heads] for operand in operands]
            attention(some, cumulative(lengths), y, scale=0.0625, kernel="mma", positions=Positions(window))
            results.append(y[:, : 2 * head_size])
        assert torch.equal(*results)


@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize("kernel", KERNELS)
def test_hostile_cu_seqlens_stay_in_bounds(kernel: str, head_size: int) -> None:
    choose(kernel, torch.float16)
    operands = make_operands("3HD", 100, 2, head_size, torch.float16, 1.0, 0)
    for values in ([0, -50, 2**31 - 1, 40, 7], [90, 80, 1000, 10**9, -(2**31)], [5, 5, 300, 300, 100]):
        y, buffer = poisoned_output((100, 2 * head_size), torch.float16)
        attention(operands, torch.tensor(values, dtype=torch.int32, device=DEVICE), y, scale=0.125, kernel=kernel)
        torch.cuda.synchronize()
        assert_guards(buffer)


@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize("heads", [2, MANY_HEADS])
@pytest.mark.parametrize("kernel", KERNELS)
def test_overlapped_launches_give_the_bits_of_separate_ones(heads: int, kernel: str, head_size: int) -> None:
    """Each launch reads what the one before wrote, and overwrites what that one read."""
    choose(kernel, torch.float16)
    lengths = LENGTHS["mixed"]
    cu_seqlens, tokens = cumulative(lengths), sum(lengths)
    tasks = make_tasks(cu_seqlens, tokens, heads)
    start = torch.randn(3, tokens, heads, head_size, device=DEVICE, generator=generator()).half()

    def run(x: torch.Tensor, *, separately: bool) -> torch.Tensor:
        for i in range(12):
            older, newer, y = x[i % 3], x[(i + 1) % 3], x[(i + 2) % 3]
            attention([newer, newer, older], cu_seqlens, y.flatten(1), scale=0.125, kernel=kernel, tasks=tasks)
            if separately:
                torch.cuda.synchronize()
        return x

    assert_same_in_a_graph(run, start)


def test_rejects_what_it_cannot_do() -> None:
    operands = make_operands("3HD", 10, 2, 64, torch.float16, 1.0, 0)
    y, _ = poisoned_output((10, 128), torch.float16)
    with pytest.raises(RuntimeError):
        attention(operands, cumulative([10]), y, scale=-1.0)
    with pytest.raises(RuntimeError):
        attention([operand[:, :, :12] for operand in operands], cumulative([10]), y, scale=1.0)


def test_captured_in_a_graph() -> None:
    lengths = LENGTHS["mixed"]
    operands = make_operands("3HD", sum(lengths), 3, 64, torch.float16, 1.0, 0)
    y, _ = poisoned_output((sum(lengths), 192), torch.float16)
    cu_seqlens = cumulative(lengths)
    attention(operands, cu_seqlens, y, scale=0.125)
    eager = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(operands, cu_seqlens, y, scale=0.125)
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, eager)
