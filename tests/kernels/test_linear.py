"""PadfreeLinear's kernel against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import linear, measured_tilings

from .cases import DEVICE, assert_accurate, assert_guards, generator, if_compiled, needs_tilings, poisoned_output

pytestmark = needs_tilings

AUTO = (0, 0, 0, 0)
CLUSTERS = [
    *((*cluster, parts) for cluster in ((1, 1), (2, 1), (1, 2)) for parts in (1, 2, 4)),
    *((*cluster, parts) for cluster in ((2, 2), (1, 4), (4, 1)) for parts in (1, 2)),
    *((2, 4, 1), (4, 2, 1)),
]
TILINGS = [
    (tokens, *cluster) for cluster in CLUSTERS for tokens in range(16, 257, 16) if tokens % (8 * cluster[0]) == 0
]
TOKENS = [1, 7, 63, 64, 65, 127, 128, 129, 1403]
ACTIVATIONS = ["none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"]
TYPES = [torch.float16, torch.bfloat16]
GUARD_ROWS = 3
"""Rows of NaN before and after x and the residual in memory."""


def inside_poison(value: torch.Tensor) -> torch.Tensor:
    """The same matrix, between rows of NaN in memory."""
    rows, columns = value.shape
    buffer = torch.full((rows + 2 * GUARD_ROWS, columns), float("nan"), dtype=value.dtype, device=value.device)
    buffer[GUARD_ROWS : GUARD_ROWS + rows] = value
    return buffer[GUARD_ROWS : GUARD_ROWS + rows]


def activate(x: torch.Tensor, name: str) -> torch.Tensor:
    functional = torch.nn.functional
    if name == "none":
        return x
    if name == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    functions = {"gelu": functional.gelu, "relu": functional.relu, "silu": functional.silu, "sigmoid": torch.sigmoid}
    return functions[name](x)


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    dtype: torch.dtype = torch.float16,
    activation: str = "none",
    with_bias: bool = True,
    with_residual: bool = False,
    tiling: tuple[int, int, int, int] = AUTO,
) -> torch.Tensor:
    def normal(*shape: int, seed: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, generator=generator(seed)).to(dtype)

    x = inside_poison(normal(tokens, depth, seed=1))
    weight = inside_poison(normal(depth, features, seed=2) * depth**-0.5)
    bias = normal(features, seed=3) if with_bias else None
    residual = inside_poison(normal(tokens, features, seed=4)) if with_residual else None
    y, buffer = poisoned_output((tokens, features), dtype)
    linear(x, weight, y, bias=bias, residual=residual, activation=activation, tiling=tiling)
    torch.cuda.synchronize()
    assert_guards(buffer)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        gemm = x.to(dtype) @ weight.to(dtype)
        if bias is not None:
            gemm = gemm + bias.to(dtype)
        result = activate(gemm, activation)
        return result if residual is None else result + residual.to(dtype)

    assert_accurate(y, compute(dtype), compute(torch.float64))
    return y


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tilings(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if_compiled(check, 333, 328, 392, dtype=dtype, activation="gelu", with_residual=True, tiling=tiling)
    if_compiled(check, 2900, 768, 1536, dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("depth", "features"), [(768, 2304), (768, 768), (384, 1536), (3072, 768), (8, 8)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tokens(tokens: int, depth: int, features: int, dtype: torch.dtype) -> None:
    check(tokens, depth, features, dtype=dtype)


@pytest.mark.parametrize("depth", [8, 56, 64, 72, 1000])
@pytest.mark.parametrize("features", [8, 64, 120, 128, 136, 1000])
def test_tails(depth: int, features: int) -> None:
    check(130, depth, features, activation="gelu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("tokens", [100, 1403])
def test_epilogues(activation: str, dtype: torch.dtype, with_bias: bool, with_residual: bool, tokens: int) -> None:
    check(
        tokens, 256, 768, dtype=dtype, activation=activation, with_bias=with_bias, with_residual=with_residual
    )  # fmt: skip


@pytest.mark.parametrize("tiling", [AUTO, (64, 1, 2, 4), (96, 2, 1, 2), (48, 2, 2, 2), (64, 2, 4, 1)], ids=str)
def test_same_bits_again(tiling: tuple[int, int, int, int]) -> None:
    first = check(1403, 768, 768, tiling=tiling)
    for _ in range(5):
        assert torch.equal(check(1403, 768, 768, tiling=tiling), first)


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_without_work(parts: int) -> None:
    """The reduction has fewer steps than there are blocks that share a tile."""
    check(130, 64, 256, tiling=(64, 1, 1, parts))


def test_measured_ranges() -> None:
    ranges = measured_tilings(768, 768, "none", torch.float16, 1, 2000)
    tokens = [last for last, _ in ranges]
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == 2000
    for last, tiling in ranges:
        check(last, 768, 768, tiling=tiling)


def test_infinities_stay_in_their_rows() -> None:
    x = torch.randn(200, 256, device=DEVICE, generator=generator(1)).half()
    weight = torch.randn(256, 128, device=DEVICE, generator=generator(2)).half()
    clean, _ = poisoned_output((200, 128), torch.float16)
    dirty, _ = poisoned_output((200, 128), torch.float16)
    linear(x, weight, clean)
    x[100:] = float("nan")
    linear(x, weight, dirty)
    assert torch.equal(clean[:100], dirty[:100])
    assert bool(dirty[100:].isnan().all())


@pytest.mark.parametrize("shape", [(10, 12, 64), (10, 64, 12)])
def test_rejects_rows_that_tma_cannot_address(shape: tuple[int, int, int]) -> None:
    with pytest.raises(RuntimeError):
        check(*shape)


def test_no_tokens_is_nothing_to_do() -> None:
    check(0, 64, 64)


def test_chain_in_a_graph() -> None:
    """GEMMs that start before the previous one ends have to wait for what they read."""
    weights = [torch.randn(768, 768, device=DEVICE, generator=generator(i)).half() / 28 for i in range(8)]
    x = torch.randn(700, 768, device=DEVICE, generator=generator(9)).half()
    outputs = [poisoned_output((700, 768), torch.float16)[0] for _ in weights]

    def run() -> None:
        source = x
        for weight, y in zip(weights, outputs, strict=True):
            linear(source, weight, y)
            source = y

    run()
    torch.cuda.synchronize()
    eager = [y.clone() for y in outputs]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        for y in outputs:
            y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outputs, eager, strict=True))
