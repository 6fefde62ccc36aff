"""Windows, slopes, distance biases and fewer K and V heads in the Hopper attention kernels, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Positions, attention, has_hopper_kernels, make_tasks

from . import attention_cases
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

if torch.cuda.is_available() and not has_hopper_kernels():
    pytest.skip("these kernels need a Hopper GPU", allow_module_level=True)

TYPES = [torch.float16, torch.bfloat16]
LONG = [513, 64, 0, 2048, 1, 129]
NEAR = [(0, 0), (1, 1), (64, 64), (63, 49), (5, 60), (37, 3), (64, 0), (0, 17)]
"""Windows that the kernel for windows supports."""
WIDE = [(-1, 0), (64, -1), (128, 128), (200, 31), (700, 700), (0, 129)]
KERNELS = [("window", 0), ("sm90", 0), ("short", 128), ("short", 64)]
"""Kernels and max_seq_len."""


def surround_with_nan(x: torch.Tensor) -> torch.Tensor:
    """The same values, with NaN before and after them in memory."""
    band = torch.full((1024,), float("nan"), dtype=x.dtype, device=x.device)
    return torch.cat([band, x.flatten(), band])[1024 : 1024 + x.numel()].view(x.shape)


def make_operands(
    tokens: int, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, filler: int = 37, spread: float = 1.0
) -> list[torch.Tensor]:
    """Views [T + filler, heads, D] of random Q, K and V in one tensor, with NaN in the filler and around it."""
    shape = (tokens, heads + 2 * kv_heads, head_size)
    values = torch.randn(shape, device=DEVICE, generator=generator()) * spread
    return list(surround_with_nan(with_filler(values.to(dtype), filler)).split([heads, kv_heads, kv_heads], dim=1))


def slopes(heads: int, steepest: float = 0.5) -> torch.Tensor:
    """ALiBi's slopes, with NaN around them."""
    return surround_with_nan(attention_cases.slopes(heads, steepest))


def distance_bias(heads: int, reach: int, spread: float = 3.0) -> torch.Tensor:
    """A random bias for every distance, with NaN around it."""
    return surround_with_nan(attention_cases.distance_bias(heads, reach, spread, seed=2))


def reference(
    operands: list[torch.Tensor], lengths: list[int], scale: float, positions: Positions, dtype: torch.dtype
) -> torch.Tensor:
    """softmax(Q K^T * scale + bias) V in the given type, one sequence after the other."""
    q, k, v = (operand.to(dtype) for operand in operands)
    heads = q.shape[1]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    rows, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        indices = torch.arange(length, device=DEVICE)
        for some in indices.split(attention_cases.ROWS):
            scores = torch.einsum("qhd,khd->hqk", q[part][some], k[part]) * scale
            scores += attention_cases.score_bias(positions, some, indices, torch.float64).to(dtype)
            rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[part]).flatten(1))
        start += length
    return torch.cat(rows)


def check(
    lengths: list[int],
    positions: Positions,
    *,
    heads: int = 3,
    kv_heads: int = 0,
    head_size: int = 64,
    dtype: torch.dtype = torch.float16,
    filler: int = 37,
    spread: float = 1.0,
    scale: float = 0.0,
    with_bias: bool = False,
    kernel: str = "auto",
    max_seq_len: int = 0,
) -> torch.Tensor:
    tokens, scale = sum(lengths), scale or head_size**-0.5
    operands = make_operands(tokens, heads, kv_heads or heads, head_size, dtype, filler, spread)
    plain = [operand[:tokens].double() for operand in operands]
    biases = None
    if with_bias:
        bias = torch.randn(3, heads, head_size, device=DEVICE, generator=generator(1)).to(dtype)
        biases = [part[: operand.shape[1]] for part, operand in zip(bias, operands, strict=True)]
        plain = [operand + part.double() for operand, part in zip(plain, biases, strict=True)]
    y, buffer = poisoned_output((tokens + filler, heads * head_size), dtype)
    cu_seqlens = cumulative(lengths)

    def launch() -> torch.Tensor:
        y.fill_(torch.nan)
        attention(
            operands, cu_seqlens, y, scale=scale, max_seq_len=max_seq_len, biases=biases, kernel=kernel,
            positions=positions,
        )  # fmt: skip
        torch.cuda.synchronize()
        return y.clone()

    first = launch()
    assert_guards(buffer)
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"
    truth = reference(plain, lengths, scale, positions, torch.float64)
    ordinary = reference([operand.to(dtype) for operand in plain], lengths, scale, positions, dtype)
    assert_accurate(y[:tokens], ordinary, truth)
    assert torch.equal(first, launch()), "a second run gave other bits"
    return first


def fits(kernel: str, positions: Positions) -> bool:
    """Whether the kernel supports these positions: the one for windows only takes near windows without a bias."""
    near = all(0 <= side <= 64 for side in positions.window)
    return kernel != "window" or (near and positions.bias == "none")


@pytest.mark.parametrize("window", [*NEAR, *WIDE], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_windows(window: tuple[int, int], dtype: torch.dtype, kernel: str, max_seq_len: int) -> None:
    positions = Positions(window)
    if not fits(kernel, positions):
        pytest.skip("this kernel is for near windows")
    for lengths in (*LENGTHS.values(), LONG):
        check(lengths, positions, dtype=dtype, kernel=kernel, max_seq_len=max_seq_len)


@pytest.mark.parametrize("positions", [Positions((65, 64)), Positions((64, -1)), Positions((9, 9), slopes=slopes(4))])
def test_the_kernel_for_windows_takes_near_ones_alone(positions: Positions) -> None:
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        check([100], positions, heads=4, kernel="window")


BIASES = {
    "slopes": lambda heads: Positions(slopes=slopes(heads)),
    "steep slopes": lambda heads: Positions(slopes=slopes(heads, 40.0)),
    "flat slopes": lambda heads: Positions(slopes=slopes(heads, 1e-3)),
    "slopes, causal": lambda heads: Positions((-1, 0), slopes=slopes(heads)),
    "slopes, window": lambda heads: Positions((70, 20), slopes=slopes(heads)),
    "distances to 128": lambda heads: Positions(distance_bias=distance_bias(heads, 128)),
    "distances to 3": lambda heads: Positions(distance_bias=distance_bias(heads, 3)),
    "no distances": lambda heads: Positions(distance_bias=distance_bias(heads, 0)),
    "distances to 512": lambda heads: Positions(distance_bias=distance_bias(heads, 512)),
    "wild distances": lambda heads: Positions(distance_bias=distance_bias(heads, 128, 1e4)),
    "distances, causal": lambda heads: Positions((-1, 0), distance_bias=distance_bias(heads, 128)),
    "distances, window": lambda heads: Positions((64, 64), distance_bias=distance_bias(heads, 31)),
}


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("kernel", "max_seq_len"), [("sm90", 0), ("short", 128), ("short", 64)])
def test_biases(name: str, dtype: torch.dtype, kernel: str, max_seq_len: int) -> None:
    for lengths in (LENGTHS["mixed"], LENGTHS["empty between"], LENGTHS["many short"], LONG):
        check(lengths, BIASES[name](4), heads=4, dtype=dtype, kernel=kernel, max_seq_len=max_seq_len)


def test_distances_beyond_the_tables_reach() -> None:
    """The Hopper kernels leave such distances to the general one."""
    check(LONG, Positions(distance_bias=distance_bias(4, 1000)), heads=4)


EVERY_KIND = [
    Positions((64, 64)),
    Positions((-1, 0)),
    Positions(slopes=slopes(4)),
    Positions(distance_bias=distance_bias(4, 128)),
]


@pytest.mark.parametrize("head_size", [8, 32, 40, 72, 96, 128])
@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_head_sizes(head_size: int, kernel: str, max_seq_len: int) -> None:
    for positions in EVERY_KIND:
        if fits(kernel, positions):
            for lengths in (LENGTHS["mixed"], [640, 33]):
                check(lengths, positions, heads=4, head_size=head_size, kernel=kernel, max_seq_len=max_seq_len)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_fewer_heads_of_keys(kv_heads: int, kernel: str, max_seq_len: int) -> None:
    for positions in (Positions(), *EVERY_KIND):
        if fits(kernel, positions):
            for dtype, head_size in ((torch.float16, 64), (torch.bfloat16, 128)):
                check(
                    LENGTHS["mixed"], positions, heads=4, kv_heads=kv_heads, dtype=dtype, head_size=head_size,
                    kernel=kernel, max_seq_len=max_seq_len, with_bias=True,
                )  # fmt: skip


@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_outliers_and_other_scales(kernel: str, max_seq_len: int) -> None:
    for positions in EVERY_KIND:
        if fits(kernel, positions):
            options = {"heads": 4, "kernel": kernel, "max_seq_len": max_seq_len}
            check(LENGTHS["mixed"], positions, spread=12.0, **options)
            check(LENGTHS["mixed"], positions, spread=0.3, scale=1.0, **options)


@pytest.mark.parametrize("heads", [2, 24])
@pytest.mark.parametrize("positions", EVERY_KIND, ids=["window", "causal", "slope", "distance"])
def test_long_sequences(positions: Positions, heads: int) -> None:
    """With two heads the GPU has so few blocks that two warpgroups share a row's keys."""
    few = Positions(
        positions.window,
        None if positions.slopes is None else slopes(heads),
        None if positions.distance_bias is None else distance_bias(heads, 128),
    )
    check([2048, 31, 700], few, heads=heads)
    if heads == 2:
        check([8192], few, heads=heads, filler=0)


@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_same_sequence_alone_and_in_a_batch_gives_the_same_bits(kernel: str, max_seq_len: int) -> None:
    """If rows have a first key or slopes, where the kernel with a task list starts depends on how a sequence is cut."""
    heads, lengths = 48, LENGTHS["mixed"] * 2
    operands = make_operands(sum(lengths), heads, heads, 64, torch.float16, 0)
    kinds = [Positions((64, 64)), Positions((-1, 0), slopes=slopes(heads, 4.0))]
    if kernel == "sm90":
        kinds = [Positions((-1, 0)), Positions((-1, 70), distance_bias=distance_bias(heads, 128))]
    for positions in (kind for kind in kinds if fits(kernel, kind)):
        options = {"scale": 0.125, "max_seq_len": max_seq_len, "kernel": kernel, "positions": positions}
        batch, _ = poisoned_output((sum(lengths), heads * 64), torch.float16)
        attention(operands, cumulative(lengths), batch, **options)
        start = 0
        for length in lengths:
            part = [operand[start : start + length] for operand in operands]
            alone, _ = poisoned_output((length, heads * 64), torch.float16)
            attention(part, cumulative([length]), alone, **options)
            assert torch.equal(alone, batch[start : start + length])
            start += length


@pytest.mark.parametrize(("kernel", "max_seq_len"), KERNELS)
def test_hostile_cu_seqlens_stay_in_bounds(kernel: str, max_seq_len: int) -> None:
    operands = make_operands(100, 4, 2, 64, torch.float16, 0)
    for values in ([0, -50, 2**31 - 1, 40, 7], [90, 80, 1000, 10**9, -(2**31)], [5, 5, 300, 300, 100]):
        for positions in EVERY_KIND:
            if fits(kernel, positions):
                y, buffer = poisoned_output((100, 256), torch.float16)
                cu_seqlens = torch.tensor(values, dtype=torch.int32, device=DEVICE)
                attention(
                    operands, cu_seqlens, y, scale=0.125, kernel=kernel, max_seq_len=max_seq_len, positions=positions
                )
                torch.cuda.synchronize()
                assert_guards(buffer)


@pytest.mark.parametrize("kernel", ["window", "sm90"])
def test_overlapped_launches_give_the_bits_of_separate_ones(kernel: str) -> None:
    """Each launch reads what the one before wrote, and overwrites what that one read."""
    lengths, heads = LENGTHS["mixed"], 12
    cu_seqlens, tokens = cumulative(lengths), sum(lengths)
    tasks = make_tasks(cu_seqlens, tokens, heads)
    start = torch.randn(3, tokens, heads, 64, device=DEVICE, generator=generator()).half()

    def run(x: torch.Tensor, *, separately: bool) -> torch.Tensor:
        for i in range(12):
            older, newer, y = x[i % 3], x[(i + 1) % 3], x[(i + 2) % 3]
            attention(
                [newer, newer, older], cu_seqlens, y.flatten(1), scale=0.125, kernel=kernel, tasks=tasks,
                positions=Positions((64, 64)),
            )  # fmt: skip
            if separately:
                torch.cuda.synchronize()
        return x

    assert_same_in_a_graph(run, start)
