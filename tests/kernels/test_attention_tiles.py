"""Tiles of the general attention kernel: of one sequence, of batches that order theirs, and of too many for a grid."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import attention

from .attention_cases import TYPES
from .cases import LENGTHS, assert_guards, cumulative, poisoned_output
from .test_attention_positions import FILLER, Positions, check, make_operands

HEAD_SIZES = [40, 64, 80, 96, 128, 136, 256]
"""Of shapes that number their tiles in few instructions (plugins/attention/mma_tiles.cuh), and narrower ones."""
WINDOWS = [(-1, -1), (-1, 0), (100, 60)]
MOST_IN_A_DIMENSION = 65535
"""Blocks in the second dimension of a grid."""


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_one_sequence(dtype: torch.dtype, head_size: int, window: tuple[int, int]) -> None:
    for length in (1, 31, 32, 33, 64, 65, 300):
        for with_bias in (False, True):
            check(
                [length], Positions(window), kv_heads=1, head_size=head_size, dtype=dtype, kernel="mma",
                with_bias=with_bias,
            )  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("batch", [2, 3, 4, 5, 30, 31, 32])
def test_batches_that_order_their_tiles(batch: int, head_size: int, window: tuple[int, int]) -> None:
    """Those of up to 31 sequences do, counting four at a time."""
    lengths = [1 + 37 * i % 150 for i in range(batch)]
    check(lengths, Positions(window), head_size=head_size, kernel="mma")


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_biases_of_queries_keys_and_values(dtype: torch.dtype, head_size: int, name: str) -> None:
    check(LENGTHS[name], Positions(), kv_heads=1, head_size=head_size, dtype=dtype, kernel="mma", with_bias=True)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_more_tiles_than_a_dimension_of_the_grid_holds(dtype: torch.dtype, head_size: int) -> None:
    """The result of a token alone is its value."""
    tokens, heads = MOST_IN_A_DIMENSION + 1, 2
    operands = make_operands(tokens, heads, heads, head_size, dtype)
    y, buffer = poisoned_output((tokens + FILLER, heads * head_size), dtype)
    attention(operands, cumulative([1] * tokens), y, scale=head_size**-0.5, kernel="mma")
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert torch.equal(y[:tokens], operands[2][:tokens].flatten(1))
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"


@pytest.mark.parametrize("window", [(-1, -1), (100, 60)], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3, 4])
def test_long_tiles_beside_short_ones(heads: int, window: tuple[int, int]) -> None:
    """On GPUs with 132 multiprocessors, all but those of one and of four heads are ordered so."""
    lengths = [111, 149, 172, 189, 190, 219, 274, 294, 297, 313, 344, 353, 379, 394, 425, 461]
    check(lengths, Positions(window), heads=heads, head_size=256, kernel="mma")


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("head_size", [72, 96, 104, 112, 128])
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
@pytest.mark.parametrize("kv_heads", [48, 24])
def test_long_tiles_with_one_buffer_with_two_and_with_scores_ahead(
    kv_heads: int, dtype: torch.dtype, head_size: int, window: tuple[int, int]
) -> None:
    """Whatever the build expects (tests/plugins/test_attention_shapes.py has the rule), bits are the same."""
    arguments = {"heads": 48, "kv_heads": kv_heads, "head_size": head_size, "dtype": dtype, "kernel": "mma"}
    for name in ("one long", "mixed"):
        for with_bias in (False, True):
            ordinary, *tall = (
                check(LENGTHS[name], Positions(window), max_seq_len=longest, with_bias=with_bias, **arguments)
                for longest in (64, 512, 1025)
            )
            assert all(torch.equal(ordinary, result) for result in tall)


@pytest.mark.parametrize("head_size", [96, 112, 128])
def test_more_long_tiles_than_a_dimension_of_the_grid_holds(head_size: int) -> None:
    """The same of tiles of 128 rows."""
    tokens, heads = MOST_IN_A_DIMENSION + 1, 2
    operands = make_operands(tokens, heads, heads, head_size, torch.float16)
    for longest in (512, 1025):
        y, buffer = poisoned_output((tokens + FILLER, heads * head_size), torch.float16)
        arguments = {"scale": head_size**-0.5, "max_seq_len": longest, "kernel": "mma"}
        attention(operands, cumulative([1] * tokens), y, **arguments)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert torch.equal(y[:tokens], operands[2][:tokens].flatten(1))
        assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"


MANY = {
    "32 mixed": [1 + 37 * i % 150 for i in range(32)],
    "short ones first": [1] * 150 + [300] * 12,
    "long ones first": [300] * 12 + [1] * 150,
    "empty ones": [0] * 90 + [65] + [0] * 90 + [64, 0, 63],
    "all as long": [128] * 40,
}
"""Batches of more sequences than can be ordered. In some, a tile's sequence is far from where the mean has it."""


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("name", MANY)
def test_many_sequences_whatever_the_order_of_their_tiles(name: str, head_size: int, window: tuple[int, int]) -> None:
    """It depends on the length that the build expects (tests/plugins/test_attention_shapes.py has the rule)."""
    results = [
        check(MANY[name], Positions(window), heads=2, head_size=head_size, kernel="mma", max_seq_len=longest)
        for longest in (32, 64, 300)
    ]
    assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("heads", [1, 16])
@pytest.mark.parametrize("head_size", [80, 96, 120, 128])
@pytest.mark.parametrize("lengths", [[128] * 16, [127] * 40, [256] * 4, [250] * 17, [1024]], ids=str)
def test_sequences_that_fill_long_tiles(lengths: list[int], head_size: int, heads: int) -> None:
    arguments = {"heads": heads, "head_size": head_size, "kernel": "mma"}
    ordinary, full = (
        check(lengths, Positions(), max_seq_len=longest, **arguments) for longest in (2 * max(lengths), max(lengths))
    )
    assert torch.equal(ordinary, full)
