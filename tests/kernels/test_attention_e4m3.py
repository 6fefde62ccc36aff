"""Attention that stores e4m3: what the same kernel stores in the operands' type, rounded once more at most."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Positions, attention

from .cases import DEVICE, GUARD, LENGTHS, cumulative, generator, poisoned
from .test_linear_e4m3 import HALF_STEP, NAN, ROUNDED_ALIKE, e4m3, poisoned_e4m3

if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("only kernels for Hopper store e4m3", allow_module_level=True)

HEADS = 3
Y_SCALE = 2.0**-6
FILLER = 5
TYPES = [torch.float16, torch.bfloat16]
WITHIN = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""What rounding to the type moves a number by, relative to it."""
KINDS = {
    "plain": (0, Positions()),
    "short": (128, Positions()),
    "window": (0, Positions(window=(64, 64))),
    "slopes": (0, Positions(slopes=torch.tensor([0.5, 0.25, 0.125]))),
}
"""The longest sequence as the kernel is told, and positions; slopes are moved to the GPU by the tests."""


def operands_of(tokens: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    whole = torch.randn(tokens, 3, HEADS, size, device=DEVICE, generator=generator(1)).to(dtype)
    return [whole[:, i] for i in range(3)]


def on_gpu(positions: Positions) -> Positions:
    if positions.slopes is None:
        return positions
    return Positions(slopes=positions.slopes.to(DEVICE))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [8, 64, 72, 128])
def test_e4m3(lengths: str, kind: str, dtype: torch.dtype, size: int) -> None:
    max_seq_len, positions = KINDS[kind][0], on_gpu(KINDS[kind][1])
    of_each = LENGTHS[lengths]
    if max_seq_len:
        of_each = [min(length, max_seq_len) for length in of_each]
    tokens = sum(of_each) + FILLER
    operands = operands_of(tokens, size, dtype)
    cu_seqlens = cumulative(of_each)
    plain, _ = poisoned((tokens, HEADS * size), dtype)
    small, buffer = poisoned_e4m3(tokens, HEADS * size)
    common = {"scale": 0.125, "max_seq_len": max_seq_len, "positions": positions}
    attention(operands, cu_seqlens, plain, **common)  # type: ignore[arg-type]
    attention(operands, cu_seqlens, small, y_scale=Y_SCALE, **common)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    assert bool((torch.cat([buffer[:GUARD], buffer[-GUARD:]]) == NAN).all())
    assert bool((small[-FILLER:].view(torch.uint8) == 0).all())
    wanted, found = plain.double() / Y_SCALE, small.double()
    allowed = (HALF_STEP + WITHIN[dtype]) * wanted.abs().clamp(min=2.0**-6)
    assert bool(((found - wanted).abs() <= allowed).all())
    least = ROUNDED_ALIKE if dtype == torch.float16 else 0.9
    assert (found == e4m3(wanted).double()).double().mean() >= least


@pytest.mark.parametrize("size", [136, 256])
def test_heads_that_no_kernel_for_hopper_has_are_refused(size: int) -> None:
    operands = operands_of(10, size, torch.float16)
    small, buffer = poisoned_e4m3(10, HEADS * size)
    with pytest.raises(RuntimeError):
        attention(operands, cumulative([10]), small, scale=0.125)
    assert bool((buffer == NAN).all())
