"""GEMMs whose columns belong together in pairs, gates and rotated pairs, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import ACTIVATIONS, Moments, Rotation, linear, measured_tilings

from .cases import DEVICE, assert_accurate, assert_guards, generator, if_compiled, needs_tilings, poisoned_output
from .test_linear import AUTO, CLUSTERS, TYPES, activate, inside_poison
from .test_linear_norms import divide, floats, moments_of

pytestmark = needs_tilings

TILINGS = [
    *((tokens, *cluster) for tokens in range(16, 257, 16) for cluster in ((2, 1, 1), (1, 1, 2))),
    *((64, *cluster) for cluster in CLUSTERS),
]
TOKENS = [1, 7, 15, 16, 17, 63, 65, 127, 129, 255, 257, 511, 513]
LONGEST = 8192


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, generator=generator(seed))


def frequencies(pairs: int, theta: float = 10000.0) -> torch.Tensor:
    """Frequencies like those of successive heads of up to 64 columns; the last pair of each head is not rotated."""
    size = min(pairs, 32)
    of_head = theta ** -(torch.arange(size, device=DEVICE, dtype=torch.float64) / size)
    of_head[-1] = 0
    return floats(of_head.repeat(-(-pairs // size))[:pairs])


def positions_of(tokens: int) -> torch.Tensor:
    """Random positions between values in memory that would change every result."""
    view, _ = poisoned_output((tokens,), torch.int32)
    drawn = torch.randint(0, LONGEST, (tokens,), device=DEVICE, dtype=torch.int32, generator=generator(6))
    return view.copy_(drawn)


def blocks(columns: torch.Tensor) -> torch.Tensor:
    """Columns [T, N] as blocks [T, N / 16, 2, 8]."""
    return columns.view(len(columns), columns.shape[1] // 16, 2, 8)


def gate(columns: torch.Tensor, activation: str) -> torch.Tensor:
    split = blocks(columns)
    return (activate(split[:, :, 0], activation) * split[:, :, 1]).flatten(1)


def rotate(columns: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotates pairs as transformers does: angles in float32, their cosines and sines in the columns' type."""
    angle = rotation.positions[:, None].float() * rotation.frequencies
    cosine, sine = ((of(angle.double())).to(columns.dtype).view(len(columns), -1, 8) for of in (torch.cos, torch.sin))
    split = blocks(columns[:, : rotation.features])
    x, y = split[:, :, 0], split[:, :, 1]
    result = torch.stack([x * cosine - y * sine, y * cosine + x * sine], 2).flatten(1)
    return torch.cat([result, columns[:, rotation.features :]], 1)


def gemm_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: str, dtype: torch.dtype
) -> torch.Tensor:
    """A GEMM in a type; norm of x: "", "layer" or "rms"."""
    rows = divide(x, dtype, norm == "rms") if norm else x.to(dtype)
    gemm = rows @ weight.to(dtype)
    return gemm if bias is None else gemm + bias.to(dtype)


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    activation: str | None = None,
    rotary_features: int = 0,
    dtype: torch.dtype = torch.float16,
    with_bias: bool = True,
    norm: str = "",
    tiling: tuple[int, int, int, int] = AUTO,
) -> torch.Tensor:
    """Checks a gated GEMM if there is an activation, else one with rotated pairs; norm: "", "layer" or "rms"."""
    x = inside_poison((normal(tokens, depth, seed=1) + (1 if norm else 0)).to(dtype))
    weight = inside_poison((normal(depth, features, seed=2) * depth**-0.5).to(dtype))
    bias = normal(features, seed=3).to(dtype) if with_bias else None
    rotation = Rotation(positions_of(tokens), frequencies(rotary_features // 2)) if rotary_features else None
    moments = None
    if norm:
        moments = Moments(of_x=floats(moments_of(x)), rms=norm == "rms")
    gated = activation is not None
    y, buffer = poisoned_output((tokens, features // 2 if gated else features), dtype)
    linear(
        x, weight, y, bias=bias, moments=moments, rotation=rotation, activation=activation or "none", gated=gated,
        tiling=tiling,
    )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(buffer)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        gemm = gemm_of(x, weight, bias, norm, dtype)
        if rotation is not None:
            return rotate(gemm, rotation)
        return gate(gemm, str(activation))

    assert_accurate(y, compute(dtype), compute(torch.float64))
    return y


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tilings(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if_compiled(check, 333, 320, 400, activation="gelu", dtype=dtype, tiling=tiling)
    if_compiled(check, 333, 320, 400, rotary_features=272, dtype=dtype, tiling=tiling)
    if_compiled(check, 2900, 768, 1536, activation="silu", norm="layer", dtype=dtype, tiling=tiling)
    if_compiled(check, 2900, 768, 1536, rotary_features=1024, norm="layer", dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("depth", [384, 768, 1024, 1152])
def test_tokens(tokens: int, depth: int) -> None:
    check(tokens, depth, 2304, activation="gelu")
    check(tokens, depth, 2304, rotary_features=1536)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("norm", ["", "layer", "rms"])
def test_gates(activation: str, dtype: torch.dtype, with_bias: bool, norm: str) -> None:
    check(200, 256, 768, activation=activation, dtype=dtype, with_bias=with_bias, norm=norm)


@pytest.mark.parametrize("rotary_features", [16, 64, 112, 128, 144, 640, 768])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("norm", ["", "layer", "rms"])
def test_rotated_pairs(rotary_features: int, dtype: torch.dtype, norm: str) -> None:
    check(1403, 256, 768, rotary_features=rotary_features, dtype=dtype, norm=norm)


@pytest.mark.parametrize("features", [16, 32, 112, 144, 272, 1040])
def test_last_columns(features: int) -> None:
    check(130, 72, features, activation="gelu")
    check(130, 72, features, rotary_features=features)


@pytest.mark.parametrize("tokens", [4802, 70_000])
def test_many_tokens(tokens: int) -> None:
    check(tokens, 768, 2304, activation="gelu", norm="layer")
    check(tokens, 768, 2304, rotary_features=1536, norm="layer")


@pytest.mark.parametrize("tiling", [AUTO, (64, 1, 4, 1), (224, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("options", [{"activation": "gelu"}, {"rotary_features": 1536}], ids=str)
def test_same_bits_again(tiling: tuple[int, int, int, int], options: dict[str, object]) -> None:
    first = check(1403, 768, 2304, norm="layer", tiling=tiling, **options)  # type: ignore[arg-type]
    for _ in range(5):
        again = check(1403, 768, 2304, norm="layer", tiling=tiling, **options)  # type: ignore[arg-type]
        assert torch.equal(again, first)


def test_tilings_that_a_build_measures() -> None:
    for gated, rotary_features in ((True, 0), (False, 512)):
        ranges = measured_tilings(
            768, 768, "none", torch.float16, 1, 1000, gated=gated, rotary_features=rotary_features
        )
        assert ranges[-1][0] == 1000
        for last, tiling in ranges:
            check(last, 768, 768, activation="none" if gated else None, rotary_features=rotary_features, tiling=tiling)


def test_infinities_stay_in_their_rows() -> None:
    x, weight = normal(200, 256, seed=1).half(), normal(256, 128, seed=2).half()
    rotation = Rotation(positions_of(200), frequencies(32))
    for options, width in (({"gated": True, "activation": "silu"}, 64), ({"rotation": rotation}, 128)):
        results = []
        for value in (1.0, float("nan")):
            x[100:] = value
            y, _ = poisoned_output((200, width), torch.float16)
            linear(x, weight, y, **options)  # type: ignore[arg-type]
            results.append(y[:100].clone())
        assert torch.equal(*results)


def test_any_position_gives_finite_results() -> None:
    """The positions of filler tokens are whatever the caller left there."""
    x, weight = normal(64, 64, seed=1).half(), normal(64, 64, seed=2).half()
    positions = torch.tensor([2**31 - 1, -(2**31), 10**6, -1], dtype=torch.int32, device=DEVICE).repeat(16)
    y, _ = poisoned_output((64, 64), torch.float16)
    linear(x, weight, y, rotation=Rotation(positions, frequencies(32)))
    assert bool(y.isfinite().all())


def test_rejects_what_does_not_come_in_pairs() -> None:
    x, weight = normal(10, 64, seed=1).half(), normal(64, 72, seed=2).half()
    with pytest.raises(RuntimeError):
        linear(x, weight, x.new_empty(10, 36), gated=True)
    rotation = Rotation(positions_of(10), frequencies(40))
    with pytest.raises(RuntimeError):
        linear(x, weight, x.new_empty(10, 72), rotation=rotation)
    weight = weight[:, :64].contiguous()
    with pytest.raises(RuntimeError):
        linear(x, weight, x.new_empty(10, 64), residual=x, rotation=Rotation(positions_of(10), frequencies(32)))
    with pytest.raises(RuntimeError):
        linear(x, weight, x.new_empty(10, 32), residual=x, gated=True)
