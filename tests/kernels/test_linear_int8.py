"""GEMMs of int8 on mma.sync against float64 truth; the sums of products are exact in both."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import MMA, MMA_TILES, Int8, Moments, Rotation, linear

from .cases import DEVICE, GUARD, assert_guards, generator, if_compiled, poisoned_output
from .test_linear import ACTIVATIONS, AUTO, TYPES, activate
from .test_linear_e4m3 import GUARD_ROWS, assert_close, normal
from .test_linear_norms import EPSILON, GROUP, floats, moments_of, norm, rows
from .test_linear_pairs import frequencies, gate, positions_of, rotate

POISON = -99
TILES = [MMA_TILES[number] for number in (2, 5, 6)]
TOKENS = [1, 7, 63, 65, 129, 1403]
SHAPES = [(768, 2304), (3072, 768), (384, 1536), (16, 16), (48, 112), (1008, 1008)]
KINDS = {
    "plain": {},
    "gelu": {"activation": "gelu", "results": "int8"},
    "normed": {"norms": "x"},
    "residual": {"norms": "residual and y", "results": "y and int8"},
    "added": {"with_residual": True, "results": "y and int8", "activation": "relu"},
    "gates": {"gated": True, "activation": "silu", "results": "int8"},
    "gates in halves": {"gated": True, "activation": "gelu"},
    "rotated": {"rotary_features": 256, "norms": "x"},
}
HALF_STEP = 0.55
"""Rounding changes a number by half a step at most; the rest is that of activations in float32."""
ROUNDED_ALIKE = 0.98
"""The least share of results that are the truth's int8; the others were close to the middle of two."""
GELU_ERROR = 2e-3
"""GELU of results in int8 is computed in float32, with an error far below a step."""


def between_poison(value: torch.Tensor) -> torch.Tensor:
    """The same matrix of int8, between rows of large numbers in memory."""
    buffer = torch.full((len(value) + 2 * GUARD_ROWS, value.shape[1]), POISON, dtype=torch.int8, device=DEVICE)
    inside = buffer[GUARD_ROWS : GUARD_ROWS + len(value)]
    return inside.copy_(value)


def poisoned_int8(rows_: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An output inside a buffer with guard bands: returns the view and the whole buffer."""
    buffer = torch.full((rows_ * columns + 2 * GUARD,), POISON, dtype=torch.int8, device=DEVICE)
    return buffer[GUARD : GUARD + rows_ * columns].view(rows_, columns), buffer


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    results: str = "y",
    norms: str = "",
    dtype: torch.dtype = torch.float16,
    activation: str = "none",
    with_residual: bool = False,
    gated: bool = False,
    rotary_features: int = 0,
    tiling: tuple[int, int, int, int] = MMA,
) -> list[torch.Tensor]:
    """Checks one GEMM; results: "y", "int8" or both; norms: any of x, residual, y (its moments)."""
    exact = rows(tokens, depth, torch.float32, "plain", seed=1)
    x_scale = float(exact.abs().max()) / 127
    x = between_poison((exact / x_scale).round().clamp(-128, 127).to(torch.int8))
    weight = between_poison(torch.randint(-127, 128, (features, depth), device=DEVICE, generator=generator(2)))
    scale = floats(x_scale * (0.5 + torch.rand(features, device=DEVICE, generator=generator(6))) * depth**-0.5 / 74)
    bias = normal(features, seed=3).to(dtype)
    with_residual |= "residual" in norms or "y" in norms
    residual = rows(tokens, features, dtype, "plain", seed=4) if with_residual else None
    residual_scale = normal(features, seed=5).to(dtype)
    rotation = Rotation(positions_of(tokens), frequencies(rotary_features // 2)) if rotary_features else None
    width = features // 2 if gated else features
    factors = floats(8 + 40 * torch.rand(width, device=DEVICE, generator=generator(7)))
    y, y_buffer = poisoned_output((tokens, width), dtype)
    y_int8, int8_buffer = poisoned_int8(tokens, width)
    out, out_buffer = poisoned_output((max(features // GROUP, 1), tokens, 2), torch.float32)
    moments = Moments(
        of_x=floats(moments_of(exact)) if "x" in norms else None,
        of_residual=floats(moments_of(residual)) if residual is not None and "residual" in norms else None,
        residual_scale=residual_scale if "residual" in norms else None,
        out=out if "y" in norms else None,
        epsilon=EPSILON,
    )
    linear(
        x,
        weight,
        y if "y" in results else None,
        bias=bias,
        residual=residual,
        moments=moments,
        rotation=rotation,
        activation=activation,
        gated=gated,
        int8=Int8(scale, y_int8 if "int8" in results else None, factors),
        dtype=dtype,
        tiling=tiling,
    )
    torch.cuda.synchronize()
    assert_guards(y_buffer)
    assert_guards(out_buffer)
    assert bool((torch.cat([int8_buffer[:GUARD], int8_buffer[-GUARD:]]) == POISON).all())

    truth = x.double() @ weight.double().T * scale.double()
    if "x" in norms:
        truth = truth / (exact.double().var(1, correction=0, keepdim=True) + EPSILON).sqrt()
    truth = truth + bias.double()
    if gated:
        truth = gate(truth, activation)
    elif rotation is not None:
        truth = rotate(truth, rotation)
    else:
        truth = activate(truth, activation)
    if residual is not None:
        of_residual = norm(residual, torch.float64) * residual_scale.double() if "residual" in norms else residual
        truth = truth + of_residual.double()
    if "y" in results:
        assert_close(y, truth, GELU_ERROR)
    else:
        assert bool(y.isnan().all())
    if "int8" in results:
        wanted = (truth * factors.double()).clamp(-128, 127)
        off = (y_int8.double() - wanted).abs().max()
        assert off <= HALF_STEP, f"a result in int8 is {off:.3f} steps off"
        alike = (y_int8.double() == wanted.round()).double().mean()
        assert alike >= ROUNDED_ALIKE, f"only {alike:.4f} are rounded as the truth"
    else:
        assert bool((int8_buffer == POISON).all())
    if "y" in norms:
        wanted_moments = moments_of(y)
        for part in range(2):
            error = (out[..., part] - wanted_moments[..., part]).norm() / wanted_moments[..., part].norm()
            assert error < 1e-4, f"relative error of moments {error:.2e}"
    return [tensor for tensor, there in ((y, "y"), (y_int8, "int8")) if there in results]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("depth", "features"), SHAPES)
def test_tokens(tokens: int, depth: int, features: int) -> None:
    check(tokens, depth, features)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 257])
def test_epilogues(tile: tuple[int, int, int, int], kind: str, dtype: torch.dtype, tokens: int) -> None:
    check(tokens, 832, 768, dtype=dtype, tiling=tile, **KINDS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("results", ["y", "int8", "y and int8"])
@pytest.mark.parametrize("with_residual", [False, True])
def test_activations(activation: str, results: str, with_residual: bool) -> None:
    check(333, 256, 768, activation=activation, results=results, with_residual=with_residual)


@pytest.mark.parametrize("depth", [16, 48, 64, 80, 112, 128, 144, 1008])
@pytest.mark.parametrize("features", [16, 64, 112, 128, 144])
def test_tails(depth: int, features: int) -> None:
    check(130, depth, features, activation="gelu", results="int8")


@pytest.mark.parametrize("tile", MMA_TILES, ids=str)
def test_other_tiles_are_refused(tile: tuple[int, int, int, int]) -> None:
    if_compiled(check, 130, 128, 128, tiling=tile)
    if tile not in TILES:
        with pytest.raises(RuntimeError):
            check(130, 128, 128, tiling=tile)


def test_sums_that_float32_cannot_hold() -> None:
    """The largest sums of 4096 products are exact to 24 bits."""
    x = torch.full((70, 4096), 127, dtype=torch.int8, device=DEVICE)
    weight = torch.full((128, 4096), 127, dtype=torch.int8, device=DEVICE)
    weight[:, 0] = 126
    scale = floats(torch.full((128,), 2.0**-12, device=DEVICE))
    y = torch.empty(70, 128, dtype=torch.float16, device=DEVICE)
    linear(x, weight, y, int8=Int8(scale), tiling=MMA)
    assert bool((y == torch.tensor((127 * (127 * 4095 + 126)) * 2.0**-12, dtype=torch.float64).half().cuda()).all())


def test_results_saturate() -> None:
    x = torch.full((5, 16), 127, dtype=torch.int8, device=DEVICE)
    weight = torch.full((16, 16), 127, dtype=torch.int8, device=DEVICE)
    weight[8:] *= -1
    y, factors = torch.zeros(5, 16, dtype=torch.int8, device=DEVICE), floats(torch.ones(16, device=DEVICE))
    bias = torch.zeros(16, dtype=torch.float16, device=DEVICE)
    bias[3] = float("nan")
    scale = floats(torch.ones(16, device=DEVICE))
    linear(x, weight, None, bias=bias, int8=Int8(scale, y, factors), dtype=torch.float16, tiling=MMA)
    assert y[0].tolist() == [127, 127, 127, 0, *[127] * 4, *[-128] * 8]


@pytest.mark.parametrize("kind", ["residual", "gelu"])
def test_same_bits_again(kind: str) -> None:
    first = check(1403, 768, 768, **KINDS[kind])  # type: ignore[arg-type]
    for _ in range(3):
        for one, other in zip(check(1403, 768, 768, **KINDS[kind]), first, strict=True):  # type: ignore[arg-type]
            assert torch.equal(one, other)


def test_every_gpu_chooses_them() -> None:
    """On Hopper, too, whose own kernels have none."""
    check(300, 768, 768, tiling=AUTO)


def test_no_tokens_is_nothing_to_do() -> None:
    x, weight = (torch.ones(rows_, 64, dtype=torch.int8, device=DEVICE) for rows_ in (0, 64))
    y = torch.empty(0, 64, dtype=torch.float16, device=DEVICE)
    linear(x, weight, y, int8=Int8(floats(torch.ones(64, device=DEVICE))), tiling=MMA)
