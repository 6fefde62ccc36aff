"""Causal attention of sequences that continue another one of their batch, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

from tests.support.launchers import Positions, attention, make_tasks, schedule

from .attention_cases import TYPES, attend, choose
from .cases import DEVICE, LENGTHS, assert_accurate, assert_guards, cumulative, generator, poisoned_output
from .test_attention_positions import FILLER, biased_positions, make_operands

CAUSAL = (-1, 0)
KERNELS = ["auto", "mma"]
"""The one that is chosen, on Hopper its own, and the one of all GPUs."""
HEAD_SIZES = [64, 128, 256]
"""One for each shape that is compiled."""
SHARED = {
    "rerank": ([200, *(1 + (37 * i) % 150 for i in range(20))], [-1] + [0] * 20),
    "edges": ([64, 1, 63, 32, 65, 31, 33, 128, 129, 0, 5], [-1, 0, 0, -1, 3, 3, 5, -1, 7, 0, 9]),
    "parents last": ([3, 90, 1, 0, 40, 257, 16], [5, 5, 6, 5, -1, -1, -1]),
    "none": ([5, 70, 300], [-1, -1, -1]),
    "not numbers of others": ([50, 60, 70, 80, 20], [-7, 1, 5, 2**31 - 1, -(2**31)]),
    "of one another": ([40, 30, 200], [1, 2, 0]),
    "long": ([1100, 700, 3, 1030], [-1, 0, 0, 1]),
}


def tokens_of(lengths: list[int], prefix: list[int]) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Every sequence with what comes before it: tokens, lengths, and which of these tokens are the sequence's own."""
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    ranges = [torch.arange(*ends[i : i + 2]) for i in range(len(lengths))]
    has_parent = [0 <= parent < len(lengths) and parent != i for i, parent in enumerate(prefix)]
    before = [ranges[prefix[i]] if has_parent[i] else ranges[i][:0] for i in range(len(lengths))]
    whole = [torch.cat(pair) for pair in zip(before, ranges, strict=True)]
    starts = torch.tensor([0, *map(len, whole)]).cumsum(0).tolist()
    own = [torch.arange(end - length, end) for (_, end), length in zip(pairwise(starts), lengths, strict=True)]
    return torch.cat(whole).to(DEVICE), list(map(len, whole)), torch.cat(own).to(DEVICE)


def check(
    lengths: list[int],
    prefix: list[int],
    positions: Positions,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    qkv_layout: str = "2HD",
    with_bias: bool = False,
    kernel: str = "auto",
    key_spread: float = 1.0,
) -> torch.Tensor:
    """Compares attention with the truth of whole sequences."""
    tokens, counts = sum(lengths), [heads, kv_heads, kv_heads]
    operands = make_operands(tokens, heads, kv_heads, head_size, dtype, qkv_layout)
    operands[1][:tokens] *= key_spread
    biases, given = None, [operand[:tokens].double() for operand in operands]
    if with_bias:
        added = torch.randn(sum(counts), head_size, device=DEVICE, generator=generator(1)).to(dtype)
        biases = added.split(counts)
        given = [operand + part.double() for operand, part in zip(given, biases, strict=True)]
    y, buffer = poisoned_output((tokens + FILLER, heads * head_size), dtype)
    numbers = torch.tensor(prefix, device=DEVICE, dtype=torch.int32)
    scale = head_size**-0.5
    common = {"scale": scale, "biases": biases, "positions": positions, "kernel": choose(kernel, dtype)}
    attention(operands, cumulative(lengths), y, **common, prefix=numbers)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"
    index, whole_lengths, own = tokens_of(lengths, prefix)
    whole = [operand[index] for operand in given]
    truth = attend(whole, whole_lengths, scale, positions, torch.float64)[own]
    plain = attend([operand.to(dtype) for operand in whole], whole_lengths, scale, positions, dtype)[own]
    assert_accurate(y[:tokens], plain, truth)
    return y


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("name", SHARED)
def test_sequences_continue_others(name: str, head_size: int, dtype: torch.dtype, kernel: str) -> None:
    check(*SHARED[name], Positions(window=CAUSAL), head_size=head_size, dtype=dtype, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (8, 2), (6, 1), (2, 2), (6, 2), (5, 1)])
def test_heads_that_share_keys(heads: int, kv_heads: int, kernel: str) -> None:
    for name in ("rerank", "edges", "parents last"):
        for head_size in HEAD_SIZES:
            sizes = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size}
            check(*SHARED[name], Positions(window=CAUSAL), kernel=kernel, **sizes)


@pytest.mark.parametrize("head_size", [16, 40, 64, 72, 96, 120, 128, 136, 192, 256])
@pytest.mark.parametrize("qkv_layout", ["3HD", "separate"])
def test_pairs_of_heads(qkv_layout: str, head_size: int) -> None:
    """Without a bias, which Hopper's kernel adds to rows of one head."""
    for dtype in (torch.float16, torch.bfloat16):
        sizes = {"qkv_layout": qkv_layout, "head_size": head_size, "dtype": dtype}
        check(*SHARED["edges"], Positions(window=CAUSAL), **sizes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spread", [0.0, 8.0, 40.0])
@pytest.mark.parametrize("left", [-1, 90])
def test_large_scores(left: int, spread: float, kernel: str) -> None:
    for name, head_size in product(("rerank", "long"), HEAD_SIZES):
        check(*SHARED[name], Positions(window=(left, 0)), head_size=head_size, kernel=kernel, key_spread=spread)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("lost", [0, 1, 4, 6])
def test_other_sequences_do_not_matter(lost: int, head_size: int, kernel: str) -> None:
    """A sequence of NaN changes no bit of those that do not continue it."""
    lengths, prefix = [100, 37, 150, 8, 61, 33, 70], [-1, 0, 0, 4, -1, 4, 2]
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    operands = make_operands(sum(lengths), 4, 2, head_size, torch.bfloat16)
    numbers = torch.tensor(prefix, device=DEVICE, dtype=torch.int32)
    results = []
    for _ in range(2):
        y = torch.empty(sum(lengths) + FILLER, 4 * head_size, device=DEVICE, dtype=torch.bfloat16)
        common = {"scale": 0.09, "positions": Positions(window=CAUSAL), "kernel": kernel}
        attention(operands, cumulative(lengths), y, **common, prefix=numbers)
        results.append(y)
        for operand in operands:
            operand[ends[lost] : ends[lost + 1]] = float("nan")
    for number, parent in enumerate(prefix):
        own = slice(*ends[number : number + 2])
        if lost not in (number, parent):
            assert torch.equal(results[0][own], results[1][own])
        else:
            assert bool(results[1][own].isnan().any())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_the_same_bits_every_time(head_size: int, kernel: str) -> None:
    lengths, prefix = [200, *[150] * 100], [-1] + [0] * 100
    operands = make_operands(sum(lengths), 16, 8, head_size, torch.bfloat16)
    numbers = torch.tensor(prefix, device=DEVICE, dtype=torch.int32)
    sizes = (sum(lengths) + FILLER, 16 * head_size)
    results = [torch.empty(sizes, device=DEVICE, dtype=torch.bfloat16) for _ in range(12)]
    for y in results:
        common = {"scale": 0.09, "positions": Positions(window=CAUSAL), "kernel": kernel}
        attention(operands, cumulative(lengths), y, **common, prefix=numbers)
    assert all(torch.equal(results[0], y) for y in results)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["none", "slope", "distance 40"])
@pytest.mark.parametrize("left", [-1, 0, 31, 64, 150, 1200])
@pytest.mark.parametrize("name", ["edges", "rerank", "long"])
def test_windows_and_biases_continue(name: str, left: int, kind: str, kernel: str) -> None:
    positions = replace(biased_positions(kind, 4), window=(left, 0))
    sizes = [(64, torch.float16), (128, torch.bfloat16), (256, torch.float16)]
    for head_size, dtype in [*sizes, (64, torch.float32)] if kernel == "auto" else sizes:
        check(*SHARED[name], positions, head_size=head_size, dtype=dtype, kernel=kernel)


@pytest.mark.parametrize("head_size", [8, 24, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("qkv_layout", ["3HD", "separate", "2HD"])
def test_heads_and_layouts(qkv_layout: str, head_size: int) -> None:
    for kv_heads, dtype in ((1, torch.float16), (3, torch.bfloat16), (3, torch.float32)):
        sizes = {"heads": 3, "kv_heads": kv_heads, "head_size": head_size, "dtype": dtype}
        check(*SHARED["edges"], Positions(window=CAUSAL), qkv_layout=qkv_layout, with_bias=True, **sizes)


@pytest.mark.parametrize("seed", range(8))
def test_random_batches(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    count = int(torch.randint(2, 60, (), generator=draw))
    lengths = (torch.rand(count, generator=draw) ** 2 * 400).int().tolist()
    prefix = torch.randint(-2, count + 2, (count,), generator=draw).tolist()
    left = int(torch.randint(-1, 300, (), generator=draw)) if seed % 2 else -1
    for head_size in HEAD_SIZES:
        check(lengths, prefix, Positions(window=(left, 0)), dtype=TYPES[seed // 2 % 2], head_size=head_size)


def test_a_prefix_of_whole_steps_changes_no_bit() -> None:
    """On mma.sync steps have 32 keys for heads of 128: what follows 64 tokens gets what it gets with them before it."""
    operands = make_operands(400, 4, 2, 128, torch.float16)
    y = [operands[0].new_empty(437, 512) for _ in range(2)]
    common = {"scale": 0.1, "positions": Positions(window=CAUSAL)}
    attention(operands, cumulative([400]), y[0], **common, kernel="mma")
    prefix = torch.tensor([-1, 0], dtype=torch.int32, device=DEVICE)
    attention(operands, cumulative([64, 336]), y[1], **common, kernel="mma", prefix=prefix)
    assert torch.equal(y[0], y[1])


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_results_in_e4m3(head_size: int) -> None:
    lengths, prefix = SHARED["rerank"]
    tokens, numbers = sum(lengths), torch.tensor(prefix, device=DEVICE, dtype=torch.int32)
    operands = make_operands(tokens, 4, 2, head_size, torch.bfloat16)
    y = [
        torch.empty(tokens + FILLER, 4 * head_size, device=DEVICE, dtype=kind)
        for kind in (torch.bfloat16, torch.float8_e4m3fn)
    ]
    for result in y:
        common = {"scale": 0.09, "positions": Positions(window=CAUSAL), "prefix": numbers}
        attention(operands, cumulative(lengths), result, **common, y_scale=0.125)
    expected = (y[0].float() * 8).clamp(-448, 448)
    assert float((y[1].float() - expected).abs().max()) <= 0.07 * float(expected.abs().max())
    near = (y[1].float() - expected).abs() <= expected.abs() * 0.07 + 0.01  # e4m3's half step is 1/16, bf16's 1/256
    assert bool(near.all())


@pytest.mark.parametrize("name", [*LENGTHS, *SHARED])
def test_positions_continue(name: str) -> None:
    lengths = LENGTHS[name] if name in LENGTHS else SHARED[name][0]
    prefix = SHARED[name][1] if name in SHARED else [(7 * i) % (len(lengths) + 2) - 1 for i in range(len(lengths))]
    tokens = sum(lengths) + FILLER
    numbers = torch.tensor(prefix, device=DEVICE, dtype=torch.int32)
    positions, sums = (torch.empty(size, device=DEVICE, dtype=torch.int32) for size in (tokens, len(lengths) + 1))
    lens = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    schedule(lens, sums, tokens, positions=positions, prefix=numbers)
    expected = [0] * FILLER
    for at in reversed(range(len(lengths))):
        parent = prefix[at] if 0 <= prefix[at] < len(lengths) and prefix[at] != at else None
        before = 0 if parent is None else lengths[parent]
        expected = [*range(before, before + lengths[at]), *expected]
    assert positions.tolist() == expected


def test_what_is_not_causal_is_refused() -> None:
    operands = make_operands(10, 2, 2, 64, torch.float16)
    prefix = torch.full((1,), -1, device=DEVICE, dtype=torch.int32)
    for window in ((-1, -1), (-1, 3)):
        with pytest.raises(RuntimeError, match="CUDA error 1"):
            attention(operands, cumulative([10]), operands[0].flatten(1).clone(), scale=1.0, prefix=prefix,
                      positions=Positions(window=window), tasks=make_tasks(cumulative([10]), 47, 2))  # fmt: skip
