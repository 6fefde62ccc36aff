"""Attention by positions: windows, slopes, distance biases, fewer heads of K and V, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch

from tests.support.launchers import Positions, attention

from .attention_cases import TYPES, attend, choose, distance_bias, slopes
from .cases import (
    DEVICE,
    LENGTHS,
    assert_accurate,
    assert_guards,
    cumulative,
    generator,
    poisoned_output,
    with_filler,
)

KERNELS = ["auto", "mma"]
WINDOWS = [(0, 0), (1, 1), (64, 64), (128, 128), (3, 70), (1000, 1000), (-1, 0), (0, -1), (64, 0), (-1, 2), (200, -1)]
EDGES = [0, 513, 1, 63, 64, 65, 0, 127, 128, 129, 300, 2]
FILLER = 37


def biased_positions(kind: str, heads: int) -> Positions:
    if kind == "slope":
        return Positions(slopes=slopes(heads))
    if kind == "none":
        return Positions()
    return Positions(distance_bias=distance_bias(heads, int(kind.removeprefix("distance "))))


def make_operands(
    tokens: int, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, qkv_layout: str = "3HD"
) -> list[torch.Tensor]:
    """Views of q [T, H, D], k and v [T, KVH, D] in one tensor, or in two or three, followed by filler."""
    counts = [heads, kv_heads, kv_heads]
    qkv = torch.randn(tokens, sum(counts), head_size, device=DEVICE, generator=generator())
    parts = with_filler(qkv.to(dtype), FILLER).split(counts, dim=1)
    if qkv_layout == "2HD":
        return [*torch.cat(parts[:2], dim=1).split(counts[:2], dim=1), parts[2]]
    return [part.contiguous() for part in parts] if qkv_layout == "separate" else list(parts)


def check(
    lengths: list[int],
    positions: Positions,
    *,
    heads: int = 3,
    kv_heads: int = 0,
    head_size: int = 64,
    dtype: torch.dtype = torch.float16,
    qkv_layout: str = "3HD",
    with_bias: bool = False,
    kernel: str = "auto",
    key_spread: float = 1.0,
    max_seq_len: int = 0,
) -> torch.Tensor:
    """Compares attention with the truth; kv_heads 0 means as many as heads."""
    tokens, counts = sum(lengths), [heads, kv_heads or heads, kv_heads or heads]
    operands = make_operands(tokens, heads, counts[1], head_size, dtype, qkv_layout)
    operands[1][:tokens] *= key_spread
    whole, biases = [operand[:tokens].double() for operand in operands], None
    if with_bias:
        added = torch.randn(sum(counts), head_size, device=DEVICE, generator=generator(1)).to(dtype)
        biases = added.split(counts)
        whole = [operand + part.double() for operand, part in zip(whole, biases, strict=True)]
    scale = head_size**-0.5
    y, buffer = poisoned_output((tokens + FILLER, heads * head_size), dtype)
    arguments = {"scale": scale, "biases": biases, "kernel": choose(kernel, dtype), "positions": positions}
    attention(operands, cumulative(lengths), y, max_seq_len=max_seq_len, **arguments)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"
    truth = attend(whole, lengths, scale, positions, torch.float64)
    plain = attend([operand.to(dtype) for operand in whole], lengths, scale, positions, dtype)
    assert_accurate(y[:tokens], plain, truth)
    return y


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_windows(window: tuple[int, int], dtype: torch.dtype, kernel: str) -> None:
    check(EDGES, Positions(window), dtype=dtype, kernel=kernel)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lengths(name: str, kernel: str) -> None:
    for window, kind in (((64, 64), "none"), ((-1, 0), "slope"), ((-1, -1), "distance 16")):
        check(LENGTHS[name], replace(biased_positions(kind, 3), window=window), kernel=kernel)


@pytest.mark.parametrize("kind", ["slope", *(f"distance {reach}" for reach in (0, 1, 16, 128, 600))])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (64, 64)], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_biases(kind: str, window: tuple[int, int], dtype: torch.dtype, kernel: str) -> None:
    check(EDGES, replace(biased_positions(kind, 3), window=window), dtype=dtype, kernel=kernel)


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("qkv_layout", ["3HD", "separate", "2HD"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_heads_that_share_keys(ratio: int, dtype: torch.dtype, qkv_layout: str, kernel: str) -> None:
    for positions in (
        Positions(),
        Positions((-1, 0)),
        biased_positions("slope", 8),
        biased_positions("distance 32", 8),
    ):
        check(
            LENGTHS["mixed"], positions, heads=8, kv_heads=8 // ratio, dtype=dtype, qkv_layout=qkv_layout,
            with_bias=qkv_layout == "separate", kernel=kernel,
        )  # fmt: skip


@pytest.mark.parametrize("head_size", [8, 16, 32, 40, 64, 72, 96, 128, 136, 160, 192, 248, 256])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_head_sizes(head_size: int, dtype: torch.dtype, kernel: str) -> None:
    for positions in (Positions(), Positions((64, 64)), replace(biased_positions("distance 20", 3), window=(-1, 0))):
        check(
            LENGTHS["mixed"], positions, head_size=head_size, dtype=dtype, kernel=kernel, with_bias=head_size % 32 == 0
        )


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("window", [(-1, 0), (256, 256)], ids=str)
def test_decoders_read_values_beside_queries_and_keys(head_size: int, window: tuple[int, int]) -> None:
    """As models with norms of Q and K do, behind PadfreeQkNormRotary."""
    for lengths in (EDGES, [1024, 77, 512]):
        check(
            lengths, Positions(window), heads=4, kv_heads=2, head_size=head_size, dtype=torch.bfloat16, qkv_layout="2HD"
        )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("window", [(64, 64), (-1, 0), (-1, -1)], ids=str)
def test_long_sequences(window: tuple[int, int], dtype: torch.dtype) -> None:
    for kind in ("none", "slope", "distance 128"):
        positions = replace(biased_positions(kind, 2), window=window)
        check([5, 2048, 700], positions, heads=2, dtype=dtype)
        if dtype != torch.float32 or window == (64, 64):
            check([8192], positions, heads=2, dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (64, 64)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_outliers(window: tuple[int, int], dtype: torch.dtype, kernel: str) -> None:
    """Biases that outweigh all scores, near and far, and slopes that leave each row only one key."""
    lonely = distance_bias(3, 128)
    lonely[:, ::37] = 1e4
    forbidden = distance_bias(3, 128)
    forbidden[:, 1::3] = -1e4
    forbidden[0, -1] = 1e4  # all keys beyond the range on one side
    rising = distance_bias(3, 600) + torch.arange(1201, device=DEVICE) * 8.0
    tables = [Positions(window, distance_bias=table) for table in (lonely, forbidden, rising, rising.flip(1))]
    steep = [Positions(window, slopes=slopes(3, steepest)) for steepest in (1e4, 30.0, -30.0)]
    for positions in tables + steep:
        check(EDGES, positions, dtype=dtype, kernel=kernel)
        check(LENGTHS["one long"], positions, dtype=dtype, kernel=kernel, key_spread=20.0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_outside_a_window_are_never_read(dtype: torch.dtype, kernel: str) -> None:
    """Keys and values are NaN where no row from 384 on, nor any other in its tile (of at most 128 rows), sees them."""
    lengths, dead = [700], slice(0, 256)
    q, k, v = make_operands(700, 3, 3, 64, dtype)
    whole = [operand[:700].clone() for operand in (q, k, v)]
    k[dead] = v[dead] = float("nan")
    for positions in (
        Positions((64, 64)),
        Positions((128, 0)),
        replace(biased_positions("slope", 3), window=(100, -1)),
    ):
        y, _ = poisoned_output((700 + FILLER, 192), dtype)
        arguments = {"scale": 0.125, "kernel": choose(kernel, dtype), "positions": positions}
        attention([q, k, v], cumulative(lengths), y, **arguments)
        truth = attend(whole, lengths, 0.125, positions, torch.float64)
        plain = attend(whole, lengths, 0.125, positions, dtype)
        assert_accurate(y[384:700], plain[384:], truth[384:])


@pytest.mark.parametrize("head_size", [32, 64, 128, 256])
@pytest.mark.parametrize("window", [(64, 64), (-1, 0), (-1, -1)], ids=str)
@pytest.mark.parametrize("name", ["mixed", "many short"])
def test_tall_and_ordinary_tiles_of_the_mma_kernel_give_the_same_bits(
    name: str, window: tuple[int, int], head_size: int
) -> None:
    """Whatever the order of tiles: sequences beyond 31 keep theirs."""
    arguments = {"heads": 48, "kv_heads": 24, "head_size": head_size, "kernel": "mma"}
    ordinary, tall = (
        check(LENGTHS[name], Positions(window), max_seq_len=longest, **arguments) for longest in (0, 4096)
    )
    assert torch.equal(ordinary, tall)


@pytest.mark.parametrize("kind", ["none", "slope", "distance 64"])
@pytest.mark.parametrize("window", [(64, 64), (-1, 0), (-1, -1)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_same_sequence_alone_and_in_a_batch_gives_the_same_bits(
    kind: str, window: tuple[int, int], kernel: str
) -> None:
    lengths, positions = LENGTHS["mixed"] + [513], replace(biased_positions(kind, 4), window=window)
    operands = make_operands(sum(lengths), 4, 2, 64, torch.float16)
    arguments = {"scale": 0.125, "kernel": choose(kernel, torch.float16), "positions": positions}
    batch, again = (poisoned_output((sum(lengths) + FILLER, 256), torch.float16)[0] for _ in range(2))
    for y in (batch, again):
        attention(operands, cumulative(lengths), y, **arguments)
    assert torch.equal(batch, again)
    start = 0
    for length in lengths:
        alone, _ = poisoned_output((length, 256), torch.float16)
        attention([operand[start : start + length] for operand in operands], cumulative([length]), alone, **arguments)
        assert torch.equal(alone, batch[start : start + length])
        start += length


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_hostile_cu_seqlens_stay_in_bounds(dtype: torch.dtype, kernel: str) -> None:
    operands = make_operands(100 - FILLER, 2, 1, 64, dtype)
    largest = 2**31 - 1
    for values in ([0, -50, largest, 40, 7], [90, 80, 1000, 10**9, -(2**31)], [5, 5, 300, 300, 100]):
        for positions in (Positions((64, 64)), Positions((largest, 0)), biased_positions("distance 8", 2)):
            y, buffer = poisoned_output((100, 128), dtype)
            offsets = torch.tensor(values, dtype=torch.int32, device=DEVICE)
            attention(operands, offsets, y, scale=0.125, kernel=choose(kernel, dtype), positions=positions)
            torch.cuda.synchronize()
            assert_guards(buffer)


def test_rejects_what_it_cannot_do() -> None:
    q, k, v = make_operands(10, 4, 4, 64, torch.float16)
    y, _ = poisoned_output((10 + FILLER, 256), torch.float16)
    with pytest.raises(RuntimeError):
        attention([q, k[:, :3], v[:, :3]], cumulative([10]), y, scale=1.0)
    wide = torch.zeros(10, 1, 264, device=DEVICE, dtype=torch.float16)
    with pytest.raises(RuntimeError):
        attention([wide] * 3, cumulative([10]), poisoned_output((10, 264), torch.float16)[0], scale=1.0)
