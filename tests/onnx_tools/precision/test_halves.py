# SPDX-License-Identifier: Apache-2.0
"""fp16 by arithmetic on bits is the same as numpy's, number by number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from padfree.onnx_tools.files import of_bfloat16
from padfree.onnx_tools.precision.bfloat16 import is_finite_in_fp16, largest_number, to_half_from_bits, unequal_in_fp16
from padfree.onnx_tools.precision.blocks import blocks
from padfree.onnx_tools.precision.halves import to_float, to_half

HALVES = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]
Floats = npt.NDArray[np.float32]


def assert_rounded(values: Floats) -> None:
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    np.testing.assert_array_equal(to_half(values).view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("values", [FINITE, HALVES, HALVES[:1], HALVES[:0]], ids=["finite", "all", "one", "none"])
def test_every_half_is_read(values: npt.NDArray[np.float16]) -> None:
    wanted = values.astype(np.float32)
    np.testing.assert_array_equal(to_float(values).view(np.uint32), wanted.view(np.uint32))


def test_halves_stay_and_ties_go_to_even() -> None:
    exact = np.sort(FINITE.astype(np.float32))
    ties = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)  # exact, with one bit more
    for values in (exact, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))):
        assert_rounded(values)


@pytest.mark.parametrize("seed", range(8))
def test_any_bits_are_rounded_as_numpy_rounds_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    scaled = (rng.standard_normal(100_000) * 2.0 ** rng.integers(-30, 15, 100_000)).astype(np.float32)
    assert_rounded(bits[np.abs(bits) < 65519])
    assert_rounded(bits[~np.isnan(bits)])
    assert_rounded(scaled)
    assert_rounded(scaled.reshape(100, 1000)[:, ::3])
    assert np.isnan(to_half(np.where(scaled > 0, np.float32(np.nan), scaled))[scaled > 0]).all()


def test_what_is_too_large_in_one_block_becomes_infinite() -> None:
    values = np.linspace(-1, 1, 200_000, dtype=np.float32)
    values[[0, 150_000]] = -7e4, 65520
    assert len(list(blocks(values))) > 2
    assert_rounded(values)
    assert np.isposinf(to_half(values)[150_000])


def test_other_types_are_read_by_numpy() -> None:
    values = np.arange(3, dtype=np.float32)
    assert to_float(values) is values
    np.testing.assert_array_equal(to_float(values.astype(np.float64)), values)


BFLOATS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
"""The bits of every number in bfloat16."""


def test_every_bfloat16_becomes_the_half_that_its_float32_becomes() -> None:
    exact = of_bfloat16(BFLOATS)
    with np.errstate(over="ignore"):
        wanted = exact.astype(np.float16)
    halves, count = to_half_from_bits(BFLOATS.reshape(256, 256))
    halves = halves.reshape(-1)
    np.testing.assert_array_equal(np.isnan(halves), np.isnan(exact))
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(halves[numbers].view(np.uint16), wanted[numbers].view(np.uint16))
    others = unequal_in_fp16(BFLOATS, halves)
    assert count == others.size < BFLOATS.size * 0.9
    left = np.setdiff1d(np.arange(BFLOATS.size), others)
    np.testing.assert_array_equal(halves[left].astype(np.float32), exact[left])


@pytest.mark.parametrize("bit", range(16))
def test_a_half_with_another_bit_is_not_the_same_number(bit: int) -> None:
    halves, _ = to_half_from_bits(BFLOATS)
    wrong = (halves.view(np.uint16) ^ np.uint16(1 << bit)).view(np.float16)
    assert unequal_in_fp16(BFLOATS, wrong).size == BFLOATS.size


def test_what_fp16_cannot_hold_is_known_by_its_bits() -> None:
    exact = of_bfloat16(BFLOATS)
    fits = np.array([is_finite_in_fp16(BFLOATS[at : at + 1]) for at in range(0, BFLOATS.size, 7)])
    np.testing.assert_array_equal(fits, np.abs(exact[::7]) <= 65504)
    some = BFLOATS[(BFLOATS & 0x7FFF) < 0x4000]
    assert largest_number(some) == np.abs(of_bfloat16(some)).max()
