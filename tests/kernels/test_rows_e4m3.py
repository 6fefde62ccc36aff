"""Norms and embeddings that write rows in e4m3: the bits to which PyTorch rounds the rows in half precision."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
import torch

from tests.support.launchers import DATA_TYPES, Float, Int64, call

from .cases import DEVICE, GUARD, LENGTHS, assert_guards, cumulative, generator, poisoned_output
from .norm_operands import NormOperands, norm_rows, normal
from .test_linear_e4m3 import HALF_STEP, LARGEST, NAN, e4m3, poisoned_e4m3

if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("e4m3 needs compute capability 8.9", allow_module_level=True)

TYPES = [torch.float16, torch.bfloat16]
WIDTHS = [8, 64, 99, 100, 384, 512, 768, 1024, 1280, 2048, 4096, 5000, 5001]
OPTIONS = ["", "beta", "bias residual beta sum", "residual beta", "rms sum", "rms residual sum"]
EPS = 1e-5
Y_SCALE = 2.0**-5
WITHIN = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The largest error of rows in half precision relative to the truth's largest number."""
Launch = Callable[[torch.Tensor | None, torch.Tensor | None, float], None]
"""Writes rows in half precision and in e4m3, or only one of these; the latter are multiplied by the factor."""


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def assert_bytes_around(buffer: torch.Tensor) -> None:
    assert bool((torch.cat([buffer[:GUARD], buffer[-GUARD:]]) == NAN).all()), "the kernel wrote outside its output"


def check_results(
    launch: Launch, rows: int, width: int, dtype: torch.dtype, y_scale: float = Y_SCALE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in half precision and in e4m3, which are the same alone; the former are those of the kernel without e4m3."""
    plain, _ = poisoned_output((rows, width), dtype)
    launch(plain, None, 1.0)
    y, y_buffer = poisoned_output((rows, width), dtype)
    beside, beside_buffer = poisoned_e4m3(rows, width)
    launch(y, beside, 1 / y_scale)
    alone, alone_buffer = poisoned_e4m3(rows, width)
    launch(None, alone, 1 / y_scale)
    torch.cuda.synchronize()
    assert_guards(y_buffer)
    assert_bytes_around(beside_buffer)
    assert_bytes_around(alone_buffer)
    assert bool((bits(plain) == bits(y)).all())
    assert bool((bits(alone) == bits(beside)).all())
    assert bool((bits(beside) == bits(e4m3(y.float() / y_scale))).all())
    return y, beside


def check_truth(actual: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype, y_scale: float = Y_SCALE) -> None:
    if not truth.numel():
        return
    wanted = (truth / y_scale).clamp(-LARGEST, LARGEST)
    allowed = HALF_STEP * wanted.abs().clamp(min=2.0**-6) + WITHIN[dtype] * truth.abs().max() / y_scale
    assert bool(((actual.double() - wanted).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [0, 1, 133])
def test_layer_norm(dtype: torch.dtype, width: int, options: str, rows: int) -> None:
    operands, sums = NormOperands.draw(rows, width, dtype, options), []

    def launch(y: torch.Tensor | None, narrow: torch.Tensor | None, factor: float) -> None:
        total, buffer = poisoned_output((rows, width), dtype)
        sums.append((total, buffer))
        call(
            "padfreeLayerNormE4m3", *operands.tensors(), y, total if "sum" in options else None,
            Int64(rows), width, Float(EPS), int(operands.rms), DATA_TYPES[dtype], narrow, Float(factor),
        )  # fmt: skip

    _, actual = check_results(launch, rows, width, dtype)
    check_truth(actual, operands.truth(EPS), dtype)
    for total, buffer in sums:
        assert_guards(buffer)
        assert bool((bits(total) == bits(sums[0][0])).all())
    if "sum" in options:
        truth_sum = operands.sum_in(torch.float64)
        assert bool(((sums[0][0].double() - truth_sum).abs() <= 2.0**-7 * truth_sum.abs().clamp(min=1)).all())


def simple_norm(x: torch.Tensor) -> Launch:
    gamma = torch.ones(x.shape[1], device=DEVICE, dtype=x.dtype)

    def launch(y: torch.Tensor | None, narrow: torch.Tensor | None, factor: float) -> None:
        call(
            "padfreeLayerNormE4m3", x, None, None, gamma, None, y, None, Int64(len(x)), x.shape[1], Float(EPS), 0,
            DATA_TYPES[x.dtype], narrow, Float(factor),
        )  # fmt: skip

    return launch


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [99, 768])
@pytest.mark.parametrize("y_scale", [2.0**-14, 2.0**-9, 2.0**14])
def test_extreme_scales(dtype: torch.dtype, width: int, y_scale: float) -> None:
    """Too large values become 448, too small ones 0."""
    x = normal(50, width, dtype=dtype)
    y, actual = check_results(simple_norm(x), len(x), width, dtype, y_scale)
    large = y.double().abs() > 480 * y_scale
    assert bool((actual.double()[large].abs() == LARGEST).all())
    assert bool(large.any()) == (y_scale < 1)
    if y_scale > 1:
        assert not actual.double().any()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [99, 768, 2048])
def test_rows_of_zeros_and_of_nan(dtype: torch.dtype, width: int) -> None:
    x = normal(9, width, dtype=dtype)
    x[2] = 0
    x[5] = float("nan")
    plain, _ = poisoned_output((9, width), dtype)
    narrow, buffer = poisoned_e4m3(9, width)
    simple_norm(x)(plain, narrow, 1 / Y_SCALE)
    torch.cuda.synchronize()
    assert_bytes_around(buffer)
    assert not bits(narrow)[2].any()
    assert bool((bits(narrow)[5] & NAN == NAN).all())
    others = [0, 1, 3, 4, 6, 7, 8]
    assert bool((bits(narrow[others]) == bits(e4m3(plain[others].float() / Y_SCALE))).all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 99, 100, 128, 384, 512, 768, 1024, 2048, 4096])
@pytest.mark.parametrize("name", ["one", "mixed", "empty between", "all empty", "many short"])
@pytest.mark.parametrize("filler", [0, 21])
def test_embedding(dtype: torch.dtype, width: int, name: str, filler: int) -> None:
    lengths = LENGTHS[name]
    tokens, words, positions, kinds = sum(lengths), 997, 600, 3
    total = tokens + filler
    word_table, position_table, type_table = (
        normal(count, width, dtype=dtype, seed=seed) for seed, count in enumerate((words, positions, kinds))
    )
    gamma, beta = normal(width, dtype=dtype, seed=4), normal(width, dtype=dtype, seed=5)
    ids = torch.randint(0, words, (total,), device=DEVICE, dtype=torch.int32, generator=generator(6))
    ids[tokens:] = -123456789
    types = torch.randint(0, kinds, (total,), device=DEVICE, dtype=torch.int32, generator=generator(7))
    starts = cumulative(lengths)

    def launch(y: torch.Tensor | None, narrow: torch.Tensor | None, factor: float) -> None:
        call(
            "padfreeEmbeddingE4m3", ids, types, None, starts, word_table, position_table, type_table, gamma, beta, y,
            total, len(lengths), width, words, positions, kinds, 0, Float(EPS), DATA_TYPES[dtype], 0,
            narrow, Float(factor),
        )  # fmt: skip

    _, actual = check_results(launch, total, width, dtype)
    assert not bits(actual)[tokens:].any(), "filler rows must become zeros"
    counted = torch.cat([torch.arange(length) for length in lengths]).to(DEVICE)
    rows = word_table[ids[:tokens].long()].double() + position_table[counted].double()
    rows = rows + type_table[types[:tokens].long()].double()
    check_truth(actual[:tokens], norm_rows(rows, gamma.double(), beta.double(), False, EPS), dtype)


def test_fp32_is_refused() -> None:
    x = normal(3, 64, dtype=torch.float32)
    narrow, buffer = poisoned_e4m3(3, 64)
    with pytest.raises(RuntimeError):
        simple_norm(x)(None, narrow, 1.0)
    torch.cuda.synchronize()
    assert bool((buffer == NAN).all())
