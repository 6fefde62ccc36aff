"""PadfreeLinear's kernels for GPUs other than Hopper (mma.sync) against float64 truth; they also run on Hopper."""

# SPDX-License-Identifier: Apache-2.0
import ctypes

import pytest
import torch

from tests.support.launchers import ACTIVATIONS as ACTIVATION_NUMBERS
from tests.support.launchers import (
    MMA,
    MMA_FP16_SUMS,
    MMA_TAIL,
    MMA_TILES,
    LinearCall,
    library,
    linear,
    linear_scratch,
    measured_tilings,
    tiling_of,
)

from . import test_linear, test_linear_e4m3, test_linear_norms, test_linear_pairs
from .cases import DEVICE, assert_accurate, generator, if_compiled, poisoned_output
from .test_linear import ACTIVATIONS, TYPES
from .test_linear_e4m3 import KINDS
from .test_linear_norms import NORMS

TOKENS = [1, 7, 31, 33, 127, 128, 129, 1403]
SHARED = [(*MMA_TILES[-1][:3], parts) for parts in (2, 3, 5, 8)]
"""Tilings in which blocks share the reduction of a tile."""
TAILS = [(*tile[:3], MMA_TAIL) for tile in MMA_TILES[1:4]]
"""Tilings in which blocks share what is left over of whole waves."""

needs_e4m3 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
    reason="GEMMs of e4m3 need compute capability 8.9",
)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("depth", "features"), [(768, 2304), (3072, 768), (384, 1536), (8, 8)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tokens(tokens: int, depth: int, features: int, dtype: torch.dtype) -> None:
    test_linear.check(tokens, depth, features, dtype=dtype, tiling=MMA)


@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
@pytest.mark.parametrize("tokens", [1, 257, 1403])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tiles(tile: tuple[int, int, int, int], tokens: int, dtype: torch.dtype) -> None:
    test_linear.check(tokens, 768, 1536, dtype=dtype, tiling=tile)
    test_linear.check(tokens, 8, 8, dtype=dtype, tiling=tile)
    test_linear_norms.check(tokens, 768, 768, norms="residual and y", dtype=dtype, tiling=tile)
    some = {"dtype": dtype, "tiling": tile}
    if_compiled(test_linear.check, tokens, 768, 1536, activation="gelu", **some)
    if_compiled(test_linear.check, tokens, 1000, 328, activation="gelu", with_residual=True, **some)
    if_compiled(test_linear_pairs.check, tokens, 320, 2 * 336, activation="silu", norm="layer", **some)
    if_compiled(test_linear_pairs.check, tokens, 320, 784, rotary_features=256, norm="", **some)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_epilogue_has_tiles_for_few_and_for_many_tokens(activation: str, adds: bool) -> None:
    call = LinearCall(y=16, residual=16 if adds else None, activation=ACTIVATION_NUMBERS[activation])

    def count(tiles: list[tuple[int, int, int, int]]) -> int:
        return sum(library().padfreeHasTiling(ctypes.byref(call), *tile) for tile in tiles)

    assert count(MMA_TILES[:4]) >= 2
    assert count(MMA_TILES[-2:]) == 2


def test_builds_measure_tiles_where_there_is_no_hopper() -> None:
    ranges = measured_tilings(768, 2304, "none", torch.float16, 1, 2048)
    if ranges[0][1][0] > 0:
        pytest.skip("Hopper's own tilings are measured here: test_linear.py does")
    assert [tokens for tokens, _ in ranges][-1] == 2048
    assert len({tile for _, tile in ranges}) > 1
    for tokens, tile in ranges:
        test_linear.check(tokens, 768, 2304, tiling=tile)


@pytest.mark.parametrize("tiling", SHARED, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tiles_that_blocks_share(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    some = {"dtype": dtype, "tiling": tiling}
    test_linear.check(1, 3072, 768, **some)
    for norms in ("residual and y", "x"):
        if_compiled(test_linear_norms.check, 33, 2048, 320, norms=norms, **some)
    for tokens in (16, 30, 70):
        if_compiled(test_linear.check, tokens, 3072, 768, **some)
        if_compiled(test_linear.check, tokens, 4000, 328, activation="silu", with_residual=True, **some)


@pytest.mark.parametrize("tiling", SHARED, ids=str)
def test_same_bits_again_whatever_the_scratch_memory_holds(tiling: tuple[int, int, int, int]) -> None:
    first = test_linear.check(30, 3072, 768, tiling=tiling)
    for _ in range(20):
        linear_scratch().random_()
        assert torch.equal(test_linear.check(30, 3072, 768, tiling=tiling), first)


@pytest.mark.parametrize("tiling", TAILS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tails_of_waves(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    some = {"dtype": dtype, "tiling": tiling}
    test_linear.check(1, 3072, 768, **some)
    test_linear.check(130, 8, 8, **some)
    for tokens in (700, 1403, 2900):
        test_linear.check(tokens, 1000, 1544, **some)
        test_linear_norms.check(tokens, 2048, 1024, norms="residual and y", **some)
        test_linear_norms.check(tokens, 1024, 2048, norms="x", **some)


@pytest.mark.parametrize("tiling", TAILS, ids=str)
def test_same_bits_again_with_tails(tiling: tuple[int, int, int, int]) -> None:
    for tokens in (1403, 2900):
        first = test_linear.check(tokens, 3072, 1024, tiling=tiling)
        whole = test_linear.check(tokens, 3072, 1024, tiling=(*tiling[:3], 1))
        assert not torch.equal(first, whole), "no tile was shared: the order of the sums is the same"
        for _ in range(20):
            linear_scratch().random_()
            assert torch.equal(test_linear.check(tokens, 3072, 1024, tiling=tiling), first)


def test_tails_take_turns_with_tiles_that_are_shared_in_the_same_memory() -> None:
    tilings = [*TAILS, SHARED[1]]
    tokens = [2900, 1403, 700, 30]
    first = [test_linear.check(*case, 3072, 768, tiling=tiling) for *case, tiling in zip(tokens, tilings, strict=True)]
    for _ in range(10):
        for *case, tiling, result in zip(tokens, tilings, first, strict=True):
            assert torch.equal(test_linear.check(*case, 3072, 768, tiling=tiling), result)


needs_fp16_sums = pytest.mark.skipif(
    torch.cuda.is_available()
    and not library().padfreeHasTiling(ctypes.byref(LinearCall(y=16, T=64, K=64, N=64, type=1)), *MMA_FP16_SUMS),
    reason="the library is for GPUs whose tensor cores add in fp32 as fast as in fp16",
)


@needs_fp16_sums
@pytest.mark.parametrize("tokens", [1, 257, 1403])
def test_sums_in_fp16(tokens: int) -> None:
    some = {"dtype": torch.float16, "tiling": MMA_FP16_SUMS}
    for depth, features in ((768, 1536), (3072, 768), (1000, 328), (8, 8)):
        test_linear.check(tokens, depth, features, **some)
        test_linear.check(tokens, depth, features, activation="gelu", **some)
    for kind in ("plain", "outliers", "far from zero"):
        for norms in ("x", "residual and y"):
            test_linear_norms.check(tokens, 768, 1088, norms=norms, kind=kind, **some)
    test_linear_pairs.check(tokens, 320, 2 * 336, activation="silu", norm="layer", **some)
    test_linear_pairs.check(tokens, 320, 784, rotary_features=256, norm="", **some)


@needs_fp16_sums
def test_sums_in_fp16_are_other_sums_and_the_same_again() -> None:
    first = test_linear.check(1403, 768, 768, tiling=MMA_FP16_SUMS)
    assert not torch.equal(first, test_linear.check(1403, 768, 768, tiling=MMA_TILES[3]))
    for _ in range(5):
        assert torch.equal(test_linear.check(1403, 768, 768, tiling=MMA_FP16_SUMS), first)


@needs_fp16_sums
def test_sums_beyond_fp16_are_computed_in_fp32() -> None:
    """Two columns of x cancel each other in the last of 16 products: their sums before that are beyond fp16."""
    x = torch.randn(200, 256, device=DEVICE, generator=generator(1)).half()
    weight = (torch.randn(256, 256, device=DEVICE, generator=generator(2)) / 16).half()
    x[70:90, 32] = x[70:90, 200] = 60000
    weight[32, 130:] = 3
    weight[200, 130:] = -3
    y, _ = poisoned_output((200, 256), torch.float16)
    again, _ = poisoned_output((200, 256), torch.float16)
    linear(x, weight, y, tiling=MMA_FP16_SUMS)
    linear(x, weight, again, tiling=MMA_TILES[3])
    assert torch.equal(y[64:128, 128:], again[64:128, 128:]), "tiles beyond fp16 have the sums of fp32"
    assert not torch.equal(y[:64], again[:64])
    assert_accurate(y[:64], x[:64] @ weight, x[:64].double() @ weight.double())
    x[130, 5] = float("nan")
    linear(x, weight, y, tiling=MMA_FP16_SUMS)
    assert bool(y[130].isnan().all())
    assert bool(y[131:].isfinite().all())


def test_numbers_that_engines_hold_keep_their_meaning() -> None:
    whole = (0x11140080, 0x12120080, 0x11120080, 0x11120040, 0x11110080, 0x12210040, 0x14410020, 0x14410010)
    assert [tiling_of(number) for number in whole] == MMA_TILES
    assert [tiling_of(0x14410010 + (parts - 1 << 8)) for *_, parts in SHARED] == SHARED
    assert [tiling_of(number + 0xF00) for number in whole[1:4]] == TAILS
    assert tiling_of(whole[3] + (1 << 29)) == MMA_FP16_SUMS


def test_blocks_share_tiles_of_long_reductions_alone_and_with_scratch_memory() -> None:
    def has(**values: int) -> int:
        call = LinearCall(**{"y": 16, "scratch": 16, "T": 32, "K": 3072, "N": 768, **values})
        return int(library().padfreeHasTiling(ctypes.byref(call), *SHARED[0]))

    assert has()
    assert not has(scratch=0)
    assert not has(K=64)
    assert not has(T=4096)
    assert not has(activation=ACTIVATION_NUMBERS["gelu"])


def test_no_tile_is_left_out() -> None:
    with pytest.raises(RuntimeError):
        test_linear.check(64, 64, 64, tiling=(-2 - len(MMA_TILES), 0, 0, 1))


@needs_e4m3
@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 257])
def test_tiles_of_e4m3(tile: tuple[int, int, int, int], kind: str, tokens: int) -> None:
    if_compiled(test_linear_e4m3.check, tokens, 832, 768, tiling=tile, **KINDS[kind])


@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
def test_same_bits_again_with_every_tile(tile: tuple[int, int, int, int]) -> None:
    first = test_linear.check(1403, 768, 768, tiling=tile)
    for _ in range(3):
        assert torch.equal(test_linear.check(1403, 768, 768, tiling=tile), first)


@pytest.mark.parametrize("depth", [8, 24, 32, 40, 64, 72, 96, 104, 1000])
@pytest.mark.parametrize("features", [8, 64, 120, 128, 136, 1000])
def test_tails(depth: int, features: int) -> None:
    test_linear.check(130, depth, features, activation="gelu", tiling=MMA)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_epilogues(activation: str, dtype: torch.dtype, with_bias: bool, with_residual: bool) -> None:
    test_linear.check(
        333, 256, 768, dtype=dtype, activation=activation, with_bias=with_bias, with_residual=with_residual, tiling=MMA
    )  # fmt: skip


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 65, 1403])
def test_norms(norms: str, dtype: torch.dtype, tokens: int) -> None:
    test_linear_norms.check(tokens, 768, 768, norms=norms, dtype=dtype, tiling=MMA)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("kind", ["outliers", "far from zero"])
@pytest.mark.parametrize("rms", [False, True])
def test_norms_of_rows_of_other_kinds(norms: str, kind: str, rms: bool) -> None:
    test_linear_norms.check(333, 768, 1088, norms=norms, kind=kind, rms=rms, tiling=MMA)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("norm", ["", "layer", "rms"])
def test_gates(activation: str, dtype: torch.dtype, norm: str) -> None:
    test_linear_pairs.check(300, 320, 2 * 336, activation=activation, dtype=dtype, norm=norm, tiling=MMA)


@pytest.mark.parametrize("rotary_features", [16, 256, 768, 784])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("norm", ["", "layer"])
def test_rotated_pairs(rotary_features: int, dtype: torch.dtype, norm: str) -> None:
    test_linear_pairs.check(300, 320, 784, rotary_features=rotary_features, dtype=dtype, norm=norm, tiling=MMA)


@needs_e4m3
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 65, 129, 1403])
def test_e4m3(kind: str, dtype: torch.dtype, tokens: int) -> None:
    test_linear_e4m3.check(tokens, 256, 768, dtype=dtype, tiling=MMA, **KINDS[kind])  # type: ignore[arg-type]


@needs_e4m3
@pytest.mark.parametrize("depth", [16, 48, 64, 80, 112, 128, 144, 1008])
@pytest.mark.parametrize("features", [16, 64, 112, 128, 144, 1008])
def test_tails_of_e4m3(depth: int, features: int) -> None:
    test_linear_e4m3.check(130, depth, features, activation="gelu", results="e4m3", tiling=MMA)
    test_linear_e4m3.check(130, depth, features, results="y and e4m3", with_residual=True, tiling=MMA)


@needs_e4m3
@pytest.mark.parametrize("depth", [768, 4096])
@pytest.mark.parametrize("kind", ["plain", "outliers", "far from zero"])
def test_long_sums_of_e4m3(depth: int, kind: str) -> None:
    test_linear_e4m3.check(600, depth, 1024, kind=kind, tiling=MMA)


@pytest.mark.parametrize("norms", ["x", "residual and y"])
def test_same_bits_again(norms: str) -> None:
    first = test_linear_norms.check(1403, 768, 768, norms=norms, tiling=MMA)
    for _ in range(5):
        again = test_linear_norms.check(1403, 768, 768, norms=norms, tiling=MMA)
        assert torch.equal(again[0], first[0])
        assert first[1] is None or torch.equal(again[1], first[1])


@pytest.mark.parametrize("shape", [(10, 12, 64), (10, 64, 12)], ids=str)
def test_rejects_rows_that_copies_cannot_address(shape: tuple[int, int, int]) -> None:
    with pytest.raises(RuntimeError):
        test_linear.check(*shape, tiling=MMA)


def test_no_tokens_is_nothing_to_do() -> None:
    test_linear.check(0, 64, 64, tiling=MMA)
