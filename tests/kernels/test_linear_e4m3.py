"""GEMMs of e4m3 in PadfreeLinear's kernel, against float64 truth of the values that the operands represent."""

# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import dataclass

import pytest
import torch

from tests.support.launchers import E4m3, Moments, Rotation, linear, measured_tilings

from .cases import DEVICE, FLOOR, GUARD, assert_guards, generator, if_compiled, needs_tilings, poisoned_output
from .test_linear import ACTIVATIONS, AUTO, CLUSTERS, TYPES, activate
from .test_linear_norms import EPSILON, GROUP, floats, moments_of, norm, rows
from .test_linear_pairs import frequencies, gate, positions_of, rotate

pytestmark = needs_tilings

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
NAN = 0x7F
Y_SCALE = 2.0**-3
GUARD_ROWS = 3

TILES = [32, 64, 96, *range(128, 257, 16)]
TILINGS = [
    (tokens, *cluster)
    for cluster in CLUSTERS
    for tokens in TILES
    if tokens % (8 * cluster[0]) == 0 and (cluster[2] == 1 or tokens <= 128)
]
TOKENS = [1, 7, 63, 65, 129, 1403]

SUM_ERROR = 1e-3
"""Error of sums of up to 1024 products, relative to their norm or largest: tensor cores add e4m3 products with about
13 bits, truncated. Rounding x and W to e4m3 costs 3.7e-2 of the norm."""
LONG_SUM_ERROR = 4e-3
"""The tolerance for sums of up to 4096 products, or sums much smaller than their terms."""
HALF_STEP = 2.0**-4
"""Rounding to e4m3 changes a number by at most this part of it, or of 2^-6 for subnormal numbers."""
ROUNDED_ALIKE = 0.97
"""The least share of results that are the truth's e4m3; the others were close to the midpoint of two."""
COARSELY_ALIKE = 0.88
"""The tolerance for GELU with fp16 types, which is computed to 1e-3 (0.1 + |x|) (linear/activation.cuh)."""
ROUNDING_EXCESS = 1.03
"""How much larger than those of the truth rounded to e4m3 the errors of e4m3 results may be, in norm."""


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """x rounded to e4m3, saturated."""
    return x.float().clamp(-LARGEST, LARGEST).to(E4M3)


def between_nan(value: torch.Tensor) -> torch.Tensor:
    """The same matrix of e4m3, between rows of NaN in memory."""
    buffer = torch.full((len(value) + 2 * GUARD_ROWS, value.shape[1]), NAN, dtype=torch.uint8, device=value.device)
    inside = buffer[GUARD_ROWS : GUARD_ROWS + len(value)].view(E4M3)
    inside.view(torch.uint8).copy_(value.view(torch.uint8))
    return inside


def poisoned_e4m3(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An output full of NaN inside a buffer with guard bands of bytes: returns the view and the whole buffer."""
    buffer = torch.full((rows * columns + 2 * GUARD,), NAN, dtype=torch.uint8, device=DEVICE)
    return buffer[GUARD : GUARD + rows * columns].view(E4M3).view(rows, columns), buffer


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, generator=generator(seed))


@dataclass(frozen=True)
class Operands:
    """x and the weight in e4m3, the scale of their sums, and the values that they represent, in float64."""

    x: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor
    real_x: torch.Tensor
    real_weight: torch.Tensor


def quantise(x: torch.Tensor, weight: torch.Tensor) -> Operands:
    """Quantises x [T, K] with one scale, a power of two, and weight [N, K] with one scale per feature."""
    x_scale = 2.0 ** math.ceil(math.log2(float(x.abs().max()) / LARGEST))
    scales = weight.abs().amax(1).clamp(min=1e-6) / LARGEST
    small_x, small_weight = between_nan(e4m3(x / x_scale)), between_nan(e4m3(weight / scales[:, None]))
    real_weight = small_weight.double() * scales.double()[:, None]
    return Operands(small_x, small_weight, floats(x_scale * scales), small_x.double() * x_scale, real_weight)


def assert_close(ours: torch.Tensor, truth: torch.Tensor, sum_error: float = SUM_ERROR) -> None:
    """Checks that errors are within those of truncated sums and of rounding to the type, in norm and at worst."""
    assert bool(ours.isfinite().all()), "the result holds NaN or infinity"
    allowed = sum_error + 2 * FLOOR[ours.dtype]
    error = (ours.double() - truth).norm() / truth.norm().clamp(min=1e-30)
    assert error <= allowed, f"relative error {error:.2e} > {allowed:.2e}"
    worst = (ours.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-30)
    assert worst <= allowed, f"worst error {worst:.2e} > {allowed:.2e}"


def assert_rounded(ours: torch.Tensor, truth: torch.Tensor, y_scale: float, least_alike: float) -> None:
    """Checks that results are the truth divided by the scale, rounded; sums near a midpoint may round either way."""
    values, wanted = ours.double(), (truth / y_scale).clamp(-LARGEST, LARGEST)
    assert bool(values.isfinite().all()), "the result holds NaN"
    slack = (SUM_ERROR + 2 * FLOOR[torch.float16]) * wanted.abs().max()
    excess = (values - wanted).abs() - (HALF_STEP * wanted.abs().clamp(min=2.0**-6) + slack)
    assert excess.max() <= 0, f"an e4m3 result is off by {excess.max():.2e} more than rounding explains"
    rounded = e4m3(wanted)
    error, rounding = (values - wanted).norm(), (rounded.double() - wanted).norm()
    assert error <= ROUNDING_EXCESS * rounding, f"errors are {error / rounding:.3f} times those of rounding"
    alike = (ours.view(torch.uint8) == rounded.view(torch.uint8)) | ((values == 0) & (rounded.double() == 0))
    assert alike.double().mean() >= least_alike, f"only {alike.double().mean():.4f} are rounded as the truth"


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
    rms: bool = False,
    kind: str = "plain",
    tiling: tuple[int, int, int, int] = AUTO,
) -> list[torch.Tensor]:
    """Checks one GEMM; results: "y", "e4m3" or both; norms: any of x, residual, y (its moments)."""
    unquantised = rows(tokens, depth, torch.float32, kind, seed=1)
    operands = quantise(unquantised, normal(features, depth, seed=2) * depth**-0.5)
    bias = normal(features, seed=3).to(dtype)
    with_residual |= "residual" in norms or "y" in norms
    residual = rows(tokens, features, dtype, "plain", seed=4) if with_residual else None
    residual_scale = normal(features, seed=5).to(dtype)
    rotation = Rotation(positions_of(tokens), frequencies(rotary_features // 2)) if rotary_features else None
    width = features // 2 if gated else features
    y, y_buffer = poisoned_output((tokens, width), dtype)
    y_e4m3, e4m3_buffer = poisoned_e4m3(tokens, width)
    out, out_buffer = poisoned_output((max(features // GROUP, 1), tokens, 2), torch.float32)
    moments = Moments(
        of_x=floats(moments_of(unquantised)) if "x" in norms else None,
        of_residual=floats(moments_of(residual)) if residual is not None and "residual" in norms else None,
        residual_scale=residual_scale if "residual" in norms else None,
        out=out if "y" in norms else None,
        epsilon=EPSILON,
        rms=rms,
    )
    linear(
        operands.x,
        operands.weight,
        y if "y" in results else None,
        bias=bias,
        residual=residual,
        moments=moments,
        rotation=rotation,
        activation=activation,
        gated=gated,
        e4m3=E4m3(operands.scale, y_e4m3 if "e4m3" in results else None, Y_SCALE),
        dtype=dtype,
        tiling=tiling,
    )
    torch.cuda.synchronize()
    assert_guards(y_buffer)
    assert_guards(out_buffer)
    assert bool((torch.cat([e4m3_buffer[:GUARD], e4m3_buffer[-GUARD:]]) == NAN).all())

    truth = operands.real_x @ operands.real_weight.T
    if "x" in norms:
        real = unquantised.double()
        mean = 0.0 if rms else real.mean(1, keepdim=True)
        root = ((real - mean).square().mean(1, keepdim=True) + EPSILON).sqrt()
        truth = truth / root
    truth = truth + bias.double()
    if gated:
        truth = gate(truth, activation)
    elif rotation is not None:
        truth = rotate(truth, rotation)
    else:
        truth = activate(truth, activation)
    if residual is not None:
        added = residual.double()
        truth = truth + (norm(residual, torch.float64, rms) * residual_scale.double() if "residual" in norms else added)
    if "y" in results:
        assert_close(y, truth, LONG_SUM_ERROR if depth > 1024 or kind != "plain" else SUM_ERROR)
    else:
        assert bool(y.isnan().all())
    if "e4m3" in results:
        coarse = activation == "gelu" and dtype == torch.float16
        assert_rounded(y_e4m3, truth, Y_SCALE, COARSELY_ALIKE if coarse else ROUNDED_ALIKE)
    else:
        assert bool((e4m3_buffer == NAN).all())
    if "y" in norms:
        wanted = moments_of(y)
        for part in range(2):
            error = (out[..., part] - wanted[..., part]).norm() / wanted[..., part].norm()
            assert error < 1e-4, f"relative error of moments {error:.2e}"
    return [y, y_e4m3.view(torch.uint8), out]


KINDS = {
    "qkv": {"norms": "x"},
    "up": {"norms": "x", "results": "e4m3", "activation": "gelu"},
    "down": {"norms": "residual and y", "results": "y and e4m3"},
    "plain": {},
    "plain to e4m3": {"results": "e4m3"},
    "first out": {"norms": "y", "results": "y and e4m3"},
    "last down": {"norms": "residual"},
    "added": {"with_residual": True},
    "added, with moments": {"norms": "residual and y"},
    "normed, added to both": {"norms": "x and y", "results": "y and e4m3"},
    "gate": {"gated": True, "activation": "gelu", "results": "e4m3"},
    "silu gate": {"gated": True, "activation": "silu", "results": "e4m3"},
    "tanh gate": {"gated": True, "activation": "gelu_tanh", "results": "e4m3"},
    "gate to y": {"gated": True, "activation": "silu"},
    "up with tanh": {"norms": "x", "results": "e4m3", "activation": "gelu_tanh"},
    "rotated": {"rotary_features": 256, "norms": "x"},
    "relu to both": {"results": "y and e4m3", "activation": "relu"},
    "residual to e4m3": {"results": "e4m3", "with_residual": True, "activation": "silu"},
}
"""All kinds of epilogues, by what they do."""
LAYER = ["qkv", "up", "down"]
OTHER_KERNELS = ["first out", "last down", "gate", "silu gate"]
"""Kinds of epilogues that have kernels of their own."""


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_tilings(tiling: tuple[int, int, int, int]) -> None:
    for kind in LAYER:
        if_compiled(check, 333, 320, 448, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]
        if_compiled(check, 2900, 768, 768, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]
    for kind in OTHER_KERNELS:
        if_compiled(check, 333, 320, 448, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_kinds(kind: str, dtype: torch.dtype, tokens: int) -> None:
    check(tokens, 256, 768, dtype=dtype, **KINDS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LAYER])
@pytest.mark.parametrize(
    "tiling", [(32, 1, 1, 4), (64, 2, 1, 2), (96, 1, 2, 1), (176, 2, 2, 1), (256, 1, 1, 1)], ids=str
)
def test_kinds_with_tilings(kind: str, tiling: tuple[int, int, int, int]) -> None:
    if_compiled(check, 1403, 448, 768, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("depth", "features"), [(768, 2304), (768, 768), (3072, 768), (16, 16)])
def test_tokens(tokens: int, depth: int, features: int) -> None:
    check(tokens, depth, features, results="y")
    check(tokens, depth, features, results="e4m3")


@pytest.mark.parametrize("depth", [16, 112, 128, 144, 1008])
@pytest.mark.parametrize("features", [16, 64, 112, 128, 144, 1008])
def test_tails(depth: int, features: int) -> None:
    check(130, depth, features, activation="gelu", results="e4m3")
    check(130, depth, features, results="y and e4m3", with_residual=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("results", ["y", "e4m3", "y and e4m3"])
@pytest.mark.parametrize("norms", ["", "x"])
def test_activations(activation: str, results: str, norms: str) -> None:
    check(300, 256, 512, activation=activation, results=results, norms=norms)
    check(300, 256, 512, activation=activation, results=results, norms=norms, rms=True)


@pytest.mark.parametrize("depth", [768, 4096])
@pytest.mark.parametrize("kind", ["plain", "outliers", "far from zero"])
def test_long_sums_with_outliers(depth: int, kind: str) -> None:
    """Truncated sums add little to e4m3's own rounding error, and no more than cuBLASLt's, which are as fast."""
    check(600, depth, 1024, kind=kind)
    operands = quantise(rows(600, depth, torch.float32, kind, seed=1), normal(1024, depth, seed=2) * depth**-0.5)
    one = torch.ones((), device=DEVICE)
    x, weight = operands.x.clone(), operands.weight.clone()
    peers = torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.float32, use_fast_accum=True).double()
    truth = x.double() @ weight.double().T
    ours, _ = poisoned_output((600, 1024), torch.float16)
    size = 2.0 ** -math.ceil(math.log2(float(truth.abs().max()) / 1024))
    linear(x, weight, ours, e4m3=E4m3(torch.full((1024,), size, device=DEVICE)))
    error, theirs = ((actual - truth).norm() / truth.norm() for actual in (ours.double() / size, peers))
    assert error <= 1.25 * theirs + 2 * FLOOR[torch.float16], f"error {error:.2e}, cuBLASLt's {theirs:.2e}"


def test_large_results_saturate() -> None:
    operands = quantise(normal(70, 256, seed=1) * 40, normal(128, 256, seed=2))
    y, _ = poisoned_e4m3(70, 128)
    linear(operands.x, operands.weight, None, e4m3=E4m3(operands.scale, y, 2.0**-6))
    truth = operands.real_x @ operands.real_weight.T * 2**6
    assert bool((y.double()[truth.abs() > 480].abs() == LARGEST).all())
    assert bool((truth.abs() > 480).any())


@pytest.mark.parametrize("tiling", [AUTO, (64, 1, 2, 1), (128, 2, 1, 1), (208, 2, 2, 1), (64, 2, 4, 1)], ids=str)
@pytest.mark.parametrize("kind", LAYER)
def test_same_bits_again(tiling: tuple[int, int, int, int], kind: str) -> None:
    first = check(1403, 768, 768, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]
    for _ in range(5):
        again = check(1403, 768, 768, tiling=tiling, **KINDS[kind])  # type: ignore[arg-type]
        for before, after in zip(first, again, strict=True):
            assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))


def test_tilings_that_a_build_measures() -> None:
    for results in ({"y"}, {"y_e4m3"}, {"y", "y_e4m3"}):
        ranges = measured_tilings(768, 768, "none", torch.float16, 1, 1000, e4m3=results)
        assert ranges[-1][0] == 1000
        for last, tiling in ranges:
            check(last, 768, 768, results=" and ".join(sorted(results)).replace("y_", ""), tiling=tiling)


def test_nan_stays_in_its_rows() -> None:
    """Filler tokens may hold anything."""
    operands = quantise(normal(200, 256, seed=1), normal(128, 256, seed=2))
    results = []
    for value in (0x10, NAN):
        operands.x[100:].view(torch.uint8).fill_(value)
        y, _ = poisoned_output((200, 128), torch.float16)
        small, _ = poisoned_e4m3(200, 128)
        linear(operands.x, operands.weight, y, e4m3=E4m3(operands.scale, small))
        results.append((y[:100].clone(), small[:100].view(torch.uint8).clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 24},
        {"features": 72},
        {"y_scale": 0.0},
        {"y_scale": 1e6},
        {"y_scale": float("nan")},
        {"tiling": (48, 1, 1, 1)},
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused(change: dict[str, object]) -> None:
    depth, features = int(str(change.get("depth", 64))), int(str(change.get("features", 64)))
    operands = quantise(normal(10, depth, seed=1), normal(features, depth, seed=2))
    y, _ = poisoned_e4m3(10, features)
    scale = float(str(change.get("y_scale", 1.0)))
    with pytest.raises(RuntimeError):
        linear(
            operands.x, operands.weight, None, e4m3=E4m3(operands.scale, y, scale), tiling=change.get("tiling", AUTO)
        )  # type: ignore[arg-type]  # fmt: skip
