"""Attention with a disentangled bias, products of rows and keys with tables of distances, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Positions, attention

from .attention_cases import TYPES
from .cases import DEVICE, LENGTHS, assert_guards, cumulative, generator, poisoned_output
from .test_attention_positions import EDGES, check, make_operands

TABLES = [("k_position", "q_position"), ("k_position",), ("q_position",)]
KERNELS = ["auto", "disentangled mma"]
"""On Hopper, "auto" is a kernel of its own for heads of up to 64."""


def tables(
    heads: int,
    head_size: int,
    reach: int,
    dtype: torch.dtype,
    *,
    longest: int = 1 << 30,
    names: tuple[str, ...] = TABLES[0],
    spread: float = 1.0,
) -> Positions:
    """Random tables surrounded by NaN; rows for distances that no sequence has are NaN, too."""
    inputs = {}
    for seed, name in enumerate(names):
        table, _ = poisoned_output((2 * reach + 1, heads * head_size), dtype)
        table.copy_(torch.randn(table.shape, device=DEVICE, generator=generator(5 + seed)) * spread)
        table[torch.arange(-reach, reach + 1).abs() >= longest] = torch.nan
        inputs[name] = table
    return Positions(**inputs)


def check_disentangled(
    lengths: list[int],
    reach: int,
    dtype: torch.dtype = torch.float16,
    *,
    head_size: int = 64,
    with_bias: bool = False,
    key_spread: float = 1.0,
    kernel: str = "auto",
    **options: object,
) -> None:
    positions = tables(3, head_size, reach, dtype, longest=max(lengths), **options)
    arguments = {
        "head_size": head_size, "dtype": dtype, "with_bias": with_bias, "key_spread": key_spread, "kernel": kernel,
    }  # fmt: skip
    y = check(lengths, positions, **arguments)
    assert torch.equal(y, check(lengths, positions, **arguments)), "a second run gave other bits"


@pytest.mark.parametrize("reach", [0, 1, 16, 256, 512, 700])
@pytest.mark.parametrize("names", TABLES, ids="+".join)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_distances_of_all_reaches(reach: int, names: tuple[str, ...], dtype: torch.dtype, kernel: str) -> None:
    check_disentangled(EDGES, reach, dtype, names=names, kernel=kernel)


@pytest.mark.parametrize("name", [name for name in LENGTHS if name != "all empty"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lengths(name: str, dtype: torch.dtype, kernel: str) -> None:
    check_disentangled(LENGTHS[name], 512, dtype, kernel=kernel)


@pytest.mark.parametrize("head_size", [8, 32, 40, 64, 72, 96, 128])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_head_sizes_and_biases(head_size: int, dtype: torch.dtype, kernel: str) -> None:
    """K's bias takes part in the disentangled bias, as rows of q_position are multiplied by K."""
    check_disentangled(LENGTHS["mixed"], 128, dtype, head_size=head_size, with_bias=True, kernel=kernel)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_outliers(dtype: torch.dtype, kernel: str) -> None:
    check_disentangled(LENGTHS["mixed"], 512, dtype, key_spread=20.0, kernel=kernel)
    check_disentangled(LENGTHS["mixed"], 512, dtype, spread=20.0, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_long_sequences(kernel: str) -> None:
    check_disentangled([2048, 31, 700], 512, kernel=kernel)


def test_no_tokens() -> None:
    positions = tables(2, 64, 4, torch.float16)
    operands = make_operands(0, 2, 2, 64, torch.float16)
    y, buffer = poisoned_output((len(operands[0]), 128), torch.float16)
    attention(operands, cumulative([0, 0, 0]), y, scale=0.1, positions=positions)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y == 0).all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_same_sequence_alone_and_in_a_batch_gives_the_same_bits(dtype: torch.dtype) -> None:
    lengths, heads, start = LENGTHS["mixed"], 3, 0
    operands = make_operands(sum(lengths), heads, heads, 64, dtype)
    positions = tables(heads, 64, 100, dtype)
    batch, _ = poisoned_output((len(operands[0]), heads * 64), dtype)
    attention(operands, cumulative(lengths), batch, scale=0.07, positions=positions)
    for length in lengths:
        part = [operand[start : start + length] for operand in operands]
        alone, _ = poisoned_output((length, heads * 64), dtype)
        attention(part, cumulative([length]), alone, scale=0.07, positions=positions)
        assert torch.equal(alone, batch[start : start + length])
        start += length


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_hostile_cu_seqlens_stay_in_bounds(dtype: torch.dtype) -> None:
    operands = make_operands(100, 3, 3, 64, dtype)
    positions = tables(3, 64, 64, dtype)
    for values in ([0, -50, 2**31 - 1, 40, 7], [90, 80, 1000, 10**9, -(2**31)], [5, 5, 300, 300, 100]):
        y, buffer = poisoned_output((100, 192), dtype)
        cu_seqlens = torch.tensor(values, dtype=torch.int32, device=DEVICE)
        attention([operand[:100] for operand in operands], cu_seqlens, y, scale=0.1, positions=positions)
        torch.cuda.synchronize()
        assert_guards(buffer)


def test_what_it_cannot_be_together_with_is_refused() -> None:
    operands = make_operands(10, 4, 2, 64, torch.float16)
    positions = tables(4, 64, 4, torch.float16)
    y, _ = poisoned_output((len(operands[0]), 256), torch.float16)
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        attention(operands, cumulative([10]), y, scale=0.1, positions=positions)
    same = make_operands(10, 4, 4, 64, torch.float16)
    windowed = Positions((3, 3), k_position=positions.k_position)
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        attention(same, cumulative([10]), y, scale=0.1, positions=windowed)
