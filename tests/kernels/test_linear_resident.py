"""GEMMs whose input stays in shared memory: every size of tile, cut and epilogue, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import measured_tilings

from . import test_linear_e4m3, test_linear_norms, test_linear_pairs
from .cases import if_compiled, needs_tilings
from .test_linear import TYPES

pytestmark = needs_tilings

CLUSTERS = [(1, 1), (2, 1), (1, 2)]
TILINGS = [(tokens, *cluster, 0) for cluster in CLUSTERS for tokens in range(128, 225, 16)]
SOME = [(128, 1, 2, 0), (160, 1, 1, 0), (176, 2, 1, 0)]
TOKENS = [1, 63, 129, 1403, 4802]

IN_E4M3 = {kind: test_linear_e4m3.KINDS[kind] for kind in ("qkv", "up", "gate", "silu gate", "rotated")}


def check_e4m3(tokens: int, depth: int, features: int, kind: str, tiling: tuple[int, int, int, int]) -> None:
    test_linear_e4m3.check(tokens, depth, features, tiling=tiling, **IN_E4M3[kind])  # type: ignore[arg-type]


def check_half(
    tokens: int, depth: int, features: int, kind: str, dtype: torch.dtype, tiling: tuple[int, int, int, int]
) -> None:
    if kind in ("qkv", "up"):
        activation = "gelu" if kind == "up" else "none"
        test_linear_norms.check(tokens, depth, features, norms="x", activation=activation, dtype=dtype, tiling=tiling)
    elif kind == "gate":
        test_linear_pairs.check(tokens, depth, features, activation="gelu", norm="layer", dtype=dtype, tiling=tiling)
    else:
        test_linear_pairs.check(tokens, depth, features, rotary_features=256, norm="rms", dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("kind", IN_E4M3)
def test_tilings_of_e4m3(tiling: tuple[int, int, int, int], kind: str) -> None:
    if_compiled(check_e4m3, 2900, 768, 1536, kind, tiling)
    if_compiled(check_e4m3, 333, 320, 448, kind, tiling)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("kind", ["qkv", "up", "gate", "rotated"])
def test_tilings_of_half(tiling: tuple[int, int, int, int], kind: str) -> None:
    if_compiled(check_half, 2900, 384, 1152, kind, torch.float16, tiling)
    if_compiled(check_half, 333, 320, 448, kind, torch.bfloat16, tiling)


@pytest.mark.parametrize("tiling", SOME, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("depth", [64, 384, 1024])
def test_tokens(tokens: int, depth: int, tiling: tuple[int, int, int, int]) -> None:
    check_e4m3(tokens, depth, 768, "up", tiling)
    check_e4m3(tokens, depth, 768, "qkv", tiling)
    if depth // 2 % 64 == 0:  # only such widths have moments
        if_compiled(check_half, tokens, depth // 2, 768, "qkv", torch.float16, tiling)


@pytest.mark.parametrize("tiling", SOME, ids=str)
@pytest.mark.parametrize("features", [16, 64, 112, 144, 1008])
@pytest.mark.parametrize("tokens", [130, 20000])
def test_ranges_of_few_tiles(tokens: int, features: int, tiling: tuple[int, int, int, int]) -> None:
    """Many ranges per block, of one tile or several, with warpgroups that may have no tile at all."""
    if tiling[1] > -(-features // 64):
        with pytest.raises(RuntimeError):  # there are fewer tiles of features than blocks in a cluster
            check_e4m3(tokens, 256, features, "qkv", tiling)
        return
    check_e4m3(tokens, 256, features, "qkv", tiling)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", IN_E4M3)
def test_types(kind: str, dtype: torch.dtype) -> None:
    test_linear_e4m3.check(1403, 768, 768, dtype=dtype, tiling=(192, 1, 2, 0), **IN_E4M3[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("tiling", SOME, ids=str)
@pytest.mark.parametrize("kind", IN_E4M3)
def test_same_bits_as_other_tilings(tiling: tuple[int, int, int, int], kind: str) -> None:
    """Sums are always added in the same order."""
    first = test_linear_e4m3.check(1403, 768, 768, tiling=(128, 1, 1, 1), **IN_E4M3[kind])  # type: ignore[arg-type]
    for _ in range(5):
        again = test_linear_e4m3.check(1403, 768, 768, tiling=tiling, **IN_E4M3[kind])  # type: ignore[arg-type]
        for before, after in zip(first, again, strict=True):
            assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))


def test_tilings_that_a_build_measures() -> None:
    """The tilings that builds choose from include such ones, and all of these are right."""
    ranges = measured_tilings(768, 3072, "gelu", torch.float16, 1, 6000, norms={"x"}, e4m3={"y_e4m3"})
    assert any(tiling[3] == 0 for _, tiling in ranges)
    for last, tiling in ranges[:: max(len(ranges) // 20, 1)]:
        test_linear_e4m3.check(last, 768, 3072, tiling=tiling, **IN_E4M3["up"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("depth", "change"),
    [
        (768, {}),
        (768, {"norms": "x", "activation": "relu"}),
        (768, {"norms": "x", "results": "y and e4m3"}),
        (1280, IN_E4M3["qkv"]),
        (2048, IN_E4M3["qkv"]),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused(depth: int, change: dict[str, object]) -> None:
    """Other epilogues, and reductions that do not fit, are refused."""
    with pytest.raises(RuntimeError):
        test_linear_e4m3.check(300, depth, 768, tiling=(224, 1, 1, 0), **change)  # type: ignore[arg-type]
