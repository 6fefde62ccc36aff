"""Attention that stores e4m3, against float64 truth and against what the same kernel stores in the operands' type."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.support.launchers import Int64, Positions, attention, call

from .attention_cases import attend, choose, distance_bias, slopes
from .cases import DEVICE, FLOOR, GUARD, LENGTHS, cumulative, generator, poisoned_output, with_filler
from .test_attention_disentangled import tables
from .test_linear_e4m3 import E4M3, HALF_STEP, LARGEST, NAN, ROUNDED_ALIKE, e4m3, poisoned_e4m3

HEADS = 3
MANY_HEADS = 48
"""Heads enough for the mma kernel's tiles of 128 query rows, where sequences may be long."""
Y_SCALE = 2.0**-6
FILLER = 5
TYPES = [torch.float16, torch.bfloat16]
WITHIN = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""A bound on the relative change of a number by rounding to the type."""
LEAST = 2.0**-6
"""The least normal number in e4m3."""


@dataclass(frozen=True)
class Kind:
    """A kind of attention. positions: made from head size and type; max_seq_len: the kernel's argument."""

    positions: Callable[[int, torch.dtype], Positions] = lambda *_: Positions()
    heads: int = HEADS
    kv_heads: int = HEADS
    max_seq_len: int = 0
    most_head_size: int = 256


KINDS = {
    "plain": Kind(),
    "tall tiles": Kind(heads=MANY_HEADS, kv_heads=MANY_HEADS, max_seq_len=4096),
    "tall tiles, two buffers": Kind(heads=MANY_HEADS, kv_heads=MANY_HEADS, max_seq_len=1024),
    "short": Kind(max_seq_len=128),
    "window": Kind(lambda *_: Positions(window=(64, 64))),
    "causal": Kind(lambda *_: Positions(window=(-1, 0))),
    "slopes": Kind(lambda *_: Positions(slopes=slopes(HEADS))),
    "distances": Kind(lambda *_: Positions(distance_bias=distance_bias(HEADS, 16))),
    "distances beyond Hopper's": Kind(lambda *_: Positions(distance_bias=distance_bias(HEADS, 600))),
    "shared keys": Kind(kv_heads=1),
    "disentangled": Kind(lambda size, dtype: tables(HEADS, size, 64, dtype), most_head_size=128),
}
KERNELS = ["auto", "mma"]
"""The plugin's choice and the general kernel; they differ on Hopper, if it has a kernel for the kind."""


def kernel_of(kernel: str, kind: str, dtype: torch.dtype) -> str:
    """The name of the kernel for a kind of attention."""
    return choose("disentangled mma" if kernel == "mma" and kind == "disentangled" else kernel, dtype)


def operands_of(tokens: int, kind: Kind, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k and v of one tensor, with NaN after the last token."""
    counts = [kind.heads, kind.kv_heads, kind.kv_heads]
    whole = torch.randn(tokens, sum(counts), size, device=DEVICE, generator=generator(1)).to(dtype)
    return list(with_filler(whole, FILLER).split(counts, dim=1))


def check(
    lengths: list[int], name: str, dtype: torch.dtype, size: int, kernel: str, *, with_bias: bool, y_scale: float
) -> None:
    """Checks guards, filler rows, and e4m3 results against the same kernel's ordinary ones and against the truth."""
    kind = KINDS[name]
    if name == "short":
        lengths = [min(length, kind.max_seq_len) for length in lengths]
    tokens, width = sum(lengths), kind.heads * size
    operands, positions = operands_of(tokens, kind, size, dtype), kind.positions(size, dtype)
    whole, biases = [operand[:tokens].double() for operand in operands], None
    if with_bias:
        counts = [kind.heads, kind.kv_heads, kind.kv_heads]
        biases = torch.randn(sum(counts), size, device=DEVICE, generator=generator(2)).to(dtype).split(counts)
        whole = [operand + bias.double() for operand, bias in zip(whole, biases, strict=True)]
    plain, _ = poisoned_output((tokens + FILLER, width), dtype)
    small, buffer = poisoned_e4m3(tokens + FILLER, width)
    scale = size**-0.5
    common = {
        "scale": scale, "max_seq_len": kind.max_seq_len, "positions": positions, "biases": biases,
        "kernel": kernel_of(kernel, name, dtype),
    }  # fmt: skip
    attention(operands, cumulative(lengths), plain, **common)  # type: ignore[arg-type]
    attention(operands, cumulative(lengths), small, y_scale=y_scale, **common)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    assert bool((torch.cat([buffer[:GUARD], buffer[-GUARD:]]) == NAN).all()), "written outside of the output"
    assert bool((small[tokens:].view(torch.uint8) == 0).all()), "filler rows must become zeros"
    if not tokens:
        return
    actual, rounded = small[:tokens].double(), plain[:tokens].double() / y_scale
    assert_within(actual, rounded, WITHIN[dtype] * rounded.abs())
    least = ROUNDED_ALIKE if dtype == torch.float16 else 0.9
    assert (actual == e4m3(rounded).double()).double().mean() >= least
    truth = attend(whole, lengths, scale, positions, torch.float64)
    reference = attend([operand.to(dtype) for operand in whole], lengths, scale, positions, dtype).double()
    worst = (reference - truth).abs().max().clamp(min=FLOOR[dtype] * float(truth.abs().max()))
    assert_within(actual, truth / y_scale, 2 * worst / y_scale)


def assert_within(actual: torch.Tensor, wanted: torch.Tensor, error: torch.Tensor) -> None:
    """Checks that each number is the rounding of some number that is at most `error` away from the wanted one."""
    nearest = wanted.clamp(-LARGEST, LARGEST)
    allowed = HALF_STEP * (nearest.abs() + error).clamp(min=LEAST) + error
    assert bool(((actual - nearest).abs() <= allowed).all())


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lengths(lengths: str, name: str, dtype: torch.dtype, kernel: str) -> None:
    check(LENGTHS[lengths], name, dtype, 64, kernel, with_bias=False, y_scale=Y_SCALE)


@pytest.mark.parametrize("size", [8, 16, 24, 32, 40, 64, 72, 96, 104, 128, 136, 256])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_head_sizes(size: int, name: str, dtype: torch.dtype, kernel: str) -> None:
    if size > KINDS[name].most_head_size:
        pytest.skip(f"heads are of up to {KINDS[name].most_head_size}")
    for with_bias in (False, True):
        check(LENGTHS["mixed"], name, dtype, size, kernel, with_bias=with_bias, y_scale=Y_SCALE)


@pytest.mark.parametrize("y_scale", [2.0**-14, 2.0**-10, 2.0**4, 2.0**14])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_numbers_beyond_the_largest_and_below_the_least(y_scale: float, name: str, kernel: str) -> None:
    check(LENGTHS["mixed"], name, torch.float16, 64, kernel, with_bias=False, y_scale=y_scale)


@pytest.mark.parametrize("name", ["plain", "window", "disentangled"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_stays_nan(name: str, kernel: str) -> None:
    lengths, kind = [70, 200, 9], KINDS[name]
    operands = operands_of(sum(lengths), kind, 64, torch.float16)
    operands[2][70:270, 1, 3] = torch.nan
    small, _ = poisoned_e4m3(sum(lengths) + FILLER, HEADS * 64)
    positions = kind.positions(64, torch.float16)
    chosen = kernel_of(kernel, name, torch.float16)
    attention(operands, cumulative(lengths), small, scale=0.125, y_scale=Y_SCALE, positions=positions, kernel=chosen)
    torch.cuda.synchronize()
    is_nan = small.view(torch.uint8) == NAN
    wanted = torch.zeros_like(is_nan)
    wanted[70:270, 64 + 3] = True
    assert torch.equal(is_nan, wanted)


def test_rounding_of_architectures_without_the_instruction() -> None:
    """Covers every number in bf16, its neighbours in float32, and the neighbours of midpoints of two e4m3 numbers."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    bits = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    x = bits.view(torch.float32)
    actual = torch.empty(len(x), dtype=torch.uint8)
    call("padfreeRoundToE4m3", x, actual, Int64(len(x)))
    wanted = x.clamp(-LARGEST, LARGEST).to(E4M3).view(torch.uint8)
    assert torch.equal(actual, torch.where(x.isnan(), NAN, wanted))


def test_fp32_is_refused() -> None:
    operands = operands_of(10, KINDS["plain"], 64, torch.float32)
    small, buffer = poisoned_e4m3(10 + FILLER, HEADS * 64)
    with pytest.raises(RuntimeError):
        attention(operands, cumulative([10]), small, scale=0.125)
    assert bool((buffer == NAN).all())
