"""Layer norms inside PadfreeLinear's kernel, against float64 truth: moments that it writes, rows that it normalises."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Moments, linear, measured_tilings

from .cases import DEVICE, assert_accurate, assert_guards, generator, if_compiled, needs_tilings, poisoned_output

pytestmark = needs_tilings

GROUP = 64
EPSILON = 1e-5
TYPES = [torch.float16, torch.bfloat16]
AUTO = (0, 0, 0, 0)
TILINGS = [
    *((tokens, *cluster) for tokens in range(16, 257, 16) for cluster in ((2, 1, 1), (1, 1, 2))),
    *((tokens, *cluster) for tokens in (32, 64, 128) for cluster in ((1, 2, 1), (1, 2, 2), (1, 1, 4), (2, 1, 2))),
    *((tokens, *cluster) for tokens in (32, 96, 224) for cluster in ((2, 2, 1), (2, 2, 2), (4, 2, 1), (2, 4, 1))),
]
TOKENS = [1, 15, 17, 100, 1403]
MOMENTS_ERROR = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative error of moments of rounded rows: that of the rounding, which partly averages out."""


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, generator=generator(seed))


def rows(tokens: int, width: int, dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """Rows as they are before a layer norm: of different sizes, with outlier features, or far from zero."""
    x = normal(tokens, width, seed=seed) * normal(tokens, 1, seed=seed + 50).exp2()
    if kind == "outliers":
        x[:, 3] *= 200
        x[:, width // 2] -= 50
    if kind == "far from zero":
        x += 20
    return x.to(dtype)


def moments_of(x: torch.Tensor) -> torch.Tensor:
    """The moments [W / 64, T, 2] of rows [T, W], in float64."""
    groups = x.double().view(len(x), -1, GROUP)
    mean = groups.mean(2)
    return torch.stack([mean, (groups - mean[..., None]).square().sum(2)], 2).transpose(0, 1).contiguous()


def norm(x: torch.Tensor, dtype: torch.dtype, rms: bool = False) -> torch.Tensor:
    """Layer norm or RMS norm of rows without gamma and beta, computed in the type."""
    if rms:
        return torch.nn.functional.rms_norm(x.to(dtype), x.shape[1:], eps=EPSILON)
    return torch.nn.functional.layer_norm(x.to(dtype), x.shape[1:], eps=EPSILON)


def divide(x: torch.Tensor, dtype: torch.dtype, rms: bool = False) -> torch.Tensor:
    """Rows divided by what a layer norm or RMS norm divides by, computed in the type; their mean stays."""
    squares = x.double().square().mean(1, keepdim=True) if rms else x.double().var(1, correction=0, keepdim=True)
    return x.to(dtype) / (squares + EPSILON).sqrt().to(dtype)


def centre(weight: torch.Tensor) -> torch.Tensor:
    """The weight [K,N] minus the mean of each column."""
    return (weight.float() - weight.float().mean(0)).to(weight.dtype)


def floats(values: torch.Tensor) -> torch.Tensor:
    """float32 values, between NaN in memory."""
    view, _ = poisoned_output(values.shape, torch.float32)
    return view.copy_(values)


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    norms: str,
    dtype: torch.dtype = torch.float16,
    activation: str = "none",
    kind: str = "plain",
    rms: bool = False,
    tiling: tuple[int, int, int, int] = AUTO,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Checks one GEMM with the norms named: any of x, residual, y (its moments)."""
    x = rows(tokens, depth, dtype, kind, seed=1)
    weight = (normal(depth, features, seed=2) * depth**-0.5).to(dtype)
    bias = normal(features, seed=3).to(dtype)
    has_residual = "residual" in norms or "y" in norms
    residual = rows(tokens, features, dtype, kind, seed=4) if has_residual else None
    scale = normal(features, seed=5).to(dtype)
    y, buffer = poisoned_output((tokens, features), dtype)
    out, out_buffer = poisoned_output((features // GROUP, tokens, 2), torch.float32)
    moments = Moments(
        of_x=floats(moments_of(x)) if "x" in norms else None,
        of_residual=floats(moments_of(residual)) if residual is not None and "residual" in norms else None,
        residual_scale=scale if "residual" in norms else None,
        out=out if "y" in norms else None,
        epsilon=EPSILON,
        rms=rms,
    )
    linear(x, weight, y, bias=bias, residual=residual, moments=moments, activation=activation, tiling=tiling)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert_guards(out_buffer)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        result = (divide(x, dtype, rms) if "x" in norms else x.to(dtype)) @ weight.to(dtype) + bias.to(dtype)
        if activation == "gelu":
            result = torch.nn.functional.gelu(result)
        if residual is not None and "residual" in norms:
            return result + norm(residual, dtype, rms) * scale.to(dtype)
        return result if residual is None else result + residual.to(dtype)

    truth = compute(torch.float64)
    assert_accurate(y, compute(dtype), truth)
    if "y" not in norms:
        assert bool(out.isnan().all())
        return y, None
    wanted = moments_of(truth)
    for part in range(2):
        error = (out[..., part] - wanted[..., part]).norm() / wanted[..., part].norm()
        assert error < MOMENTS_ERROR[dtype], f"relative error {error:.2e}"
    return y, out


NORMS = ["x", "y", "residual", "residual and y", "x and y"]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("norms", ["x", "residual", "residual and y"])
def test_tilings(tiling: tuple[int, int, int, int], norms: str) -> None:
    if_compiled(check, 333, 320, 448, norms=norms, tiling=tiling)
    if_compiled(check, 2900, 768, 768, norms=norms, tiling=tiling)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_tokens(norms: str, dtype: torch.dtype, tokens: int) -> None:
    check(tokens, 768, 768, norms=norms, dtype=dtype)


@pytest.mark.parametrize("depth", [64, 128, 192])
@pytest.mark.parametrize("tiling", [(16, 2, 1, 1), (64, 1, 2, 1), (224, 2, 1, 1), (256, 1, 1, 1)], ids=str)
def test_short_reductions_of_many_tiles(tiling: tuple[int, int, int, int], depth: int) -> None:
    # The residual occupies stages of the ring: if the reduction has one stage, most of the ring is residual.
    check(20 * tiling[0] * 7 + 3, depth, 768, norms="residual and y", tiling=tiling)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("kind", ["outliers", "far from zero"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_of_other_kinds(norms: str, kind: str, dtype: torch.dtype) -> None:
    check(500, 384, 1024 if "residual" in norms else 1536, norms=norms, kind=kind, dtype=dtype)


@pytest.mark.parametrize("norms", ["x", "residual and y", "x and y"])
@pytest.mark.parametrize("kind", ["plain", "outliers", "far from zero"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rms_norms(norms: str, kind: str, dtype: torch.dtype) -> None:
    check(500, 768, 1024, norms=norms, kind=kind, dtype=dtype, rms=True)


@pytest.mark.parametrize("norms", ["x", "residual and y"])
@pytest.mark.parametrize("width", [1088, 1152, 2048, 4096])
@pytest.mark.parametrize("rms", [False, True])
def test_wide_rows(norms: str, width: int, rms: bool) -> None:
    depth, features = (width, 256) if norms == "x" else (256, width)
    check(333, depth, features, norms=norms, kind="outliers", rms=rms)


@pytest.mark.parametrize("tokens", [64, 1403, 4915])
def test_activation_of_normed_rows(tokens: int) -> None:
    check(tokens, 768, 3072, norms="x", activation="gelu")


@pytest.mark.parametrize("norms", ["x", "residual and y"])
@pytest.mark.parametrize("tiling", [AUTO, (64, 1, 2, 4), (224, 2, 1, 1)], ids=str)
def test_same_bits_again(norms: str, tiling: tuple[int, int, int, int]) -> None:
    if norms == "x" and tiling[3] > 1:
        pytest.skip("blocks share no tile whose input is normed")
    first = check(1403, 768, 768, norms=norms, tiling=tiling)
    for _ in range(5):
        again = check(1403, 768, 768, norms=norms, tiling=tiling)
        assert torch.equal(again[0], first[0])
        assert first[1] is None or torch.equal(again[1], first[1])


def test_moments_feed_the_next_gemm() -> None:
    """Two GEMMs without a kernel for the norm between them, in a graph, against PyTorch's norm in float64."""
    x = normal(700, 768, seed=1).half()
    residual = normal(700, 768, seed=2).half()
    first, second = (centre((normal(768, 768, seed=seed) / 28).half()) for seed in (3, 4))
    z, y = (poisoned_output((700, 768), torch.float16)[0] for _ in range(2))
    moments, _ = poisoned_output((12, 700, 2), torch.float32)

    def run() -> None:
        linear(x, first, z, residual=residual, moments=Moments(out=moments, epsilon=EPSILON))
        linear(z, second, y, moments=Moments(of_x=moments, epsilon=EPSILON))

    run()
    torch.cuda.synchronize()
    between = x.double() @ first.double() + residual.double()
    plain = norm((x @ first + residual), torch.float16) @ second
    assert_accurate(y, plain, norm(between, torch.float64) @ second.double())
    eager = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        for tensor in (z, y, moments):
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, eager)


def test_infinities_stay_in_their_rows() -> None:
    x = normal(200, 256, seed=1).half()
    weight = normal(256, 128, seed=2).half()
    results = []
    for value in (1.0, float("nan")):
        x[100:] = value
        y, moments = poisoned_output((200, 128), torch.float16)[0], poisoned_output((2, 200, 2), torch.float32)[0]
        moments_given = Moments(of_x=moments_of(x).float(), out=moments)
        linear(x, weight, y, moments=moments_given)
        results.append((y[:100].clone(), moments[:, :100].clone()))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("tiling", [(32, 2, 4, 1), (64, 2, 4, 1), (32, 4, 2, 1), (32, 2, 2, 2), (32, 1, 1, 1)], ids=str)
def test_launches_by_the_thousand(tiling: tuple[int, int, int, int]) -> None:
    """A launch fails if a block ends before its neighbours' last arrivals have come, but only rarely."""
    tokens, depth, features = 768, 1536, 384
    x, weight, bias, residual = (
        normal(*shape, seed=seed).half() / 8
        for seed, shape in enumerate([(tokens, depth), (depth, features), (features,), (tokens, features)])
    )
    y, guards = poisoned_output((tokens, features), torch.float16)
    moments = floats(normal(features // GROUP, tokens, 2, seed=9))

    def run() -> None:
        linear(x, weight, y, bias=bias, residual=residual, moments=Moments(out=moments), tiling=tiling)

    run()
    torch.cuda.synchronize()
    first = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(24):
            run()
    for _ in range(400):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, first)
    assert_guards(guards)


def test_measured_with_norms() -> None:
    for norms in (["x"], ["residual", "y"]):
        ranges = measured_tilings(768, 768, "none", torch.float16, 1, 1000, residual="y" in norms, norms=norms)
        assert ranges[-1][0] == 1000
        for last, tiling in ranges:
            check(last, 768, 768, norms=" and ".join(norms), tiling=tiling)


@pytest.mark.parametrize("shape", [(10, 72, 64), (10, 64, 72), (10, 4160, 64)], ids=str)
def test_rejects_widths_that_it_cannot_norm(shape: tuple[int, int, int]) -> None:
    tokens, depth, features = shape
    x, weight = normal(tokens, depth, seed=1).half(), normal(depth, features, seed=2).half()
    y = x.new_empty(tokens, features)
    moments = torch.zeros(2, tokens, 2, device=DEVICE)
    moments_given = Moments(out=moments) if depth == GROUP else Moments(of_x=moments)
    with pytest.raises(RuntimeError):
        linear(x, weight, y, moments=moments_given)


def test_rejects_two_norms() -> None:
    x = normal(10, 64, seed=1).half()
    moments = torch.zeros(1, 10, 2, device=DEVICE)
    moments_given = Moments(of_x=moments, of_residual=moments, residual_scale=x[0])
    with pytest.raises(RuntimeError):
        linear(x, x.new_zeros(64, 64), torch.empty_like(x), residual=x, moments=moments_given)
