# SPDX-License-Identifier: Apache-2.0
"""Targets of views as exporters construct them: parts of shapes, some of them empty, and sizes that are computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import HEADS, MANY, SIZE, PositionedBuilder

Target = Callable[[PositionedBuilder, str], str]


def batch(b: PositionedBuilder) -> str:
    return b.op("Shape", "input_ids", start=0, end=1)


def length(b: PositionedBuilder) -> str:
    return b.op("Shape", "input_ids", start=1, end=2)


def part(b: PositionedBuilder, x: str, start: int, end: int) -> str:
    return b.op("Slice", b.op("Shape", x), b.axes(start), b.constant([end], np.int64), b.axes(0))


def flatten(b: PositionedBuilder, x: str) -> str:
    """torch.flatten(x, 0, 1) by TorchScript, of [B,H,S,D]: the part ahead of the axes has no elements."""
    return b.op("Concat", part(b, x, 0, 0), b.axes(-1), part(b, x, 2, 4), axis=0)


def by_shapes_with_ends(b: PositionedBuilder, x: str) -> str:
    parts = b.op("Shape", x, start=0, end=0), b.axes(-1), b.op("Shape", x, start=2), b.op("Shape", x, start=4)
    return b.op("Concat", *parts, axis=0)


def by_a_split(b: PositionedBuilder, x: str) -> str:
    """Parts of a shape, one of which has no elements."""
    first, nothing, rest = (f"{x}_part{i}" for i in range(3))
    node = b.op("Split", b.op("Shape", x), b.axes(2, 0, 2), axis=0, output=first)
    b.nodes[-1].output.extend([nothing, rest])
    return b.op("Concat", nothing, b.op("ReduceProd", node, keepdims=1), rest, axis=0)


def by_a_constant_of_no_elements(b: PositionedBuilder, x: str) -> str:
    return b.op("Concat", b.constant([], np.int64), b.axes(-1), part(b, x, -2, MANY), axis=0)


def by_a_gather_of_nothing(b: PositionedBuilder, x: str) -> str:
    nothing = b.op("Gather", b.op("Shape", x), b.constant([], np.int64))
    return b.op("Concat", b.axes(-1), nothing, part(b, x, 2, 4), axis=0)


def by_numbers(b: PositionedBuilder, _: str) -> str:
    """Single sizes, squeezed and unsqueezed on the way."""
    count = b.op("Squeeze", b.op("Mul", b.op("Concat", batch(b), axis=0), b.axes(HEADS)), b.axes(0))
    sizes = [b.op("Unsqueeze", count, b.axes(0)), length(b), b.axes(SIZE)]
    return b.op("Cast", b.op("Concat", *sizes, axis=0), to=TensorProto.INT64)


def of_powers(b: PositionedBuilder, _: str) -> str:
    """S * S / S, as torch.export divides the number of elements by other sizes."""
    long = b.op("Div", b.op("Pow", length(b), b.constant(2, np.int64)), length(b))
    return b.op("Concat", b.axes(-1), long, b.axes(SIZE), axis=0)


def tile(b: PositionedBuilder, _: str) -> str:
    """Sizes from tensor_split: one part is repeated as often as a division's remainder says, which is 0 times."""
    rest = b.op("Mod", b.axes(HIDDEN), b.axes(SIZE))
    nothing, once = b.op("Tile", b.axes(5), rest), b.op("Tile", b.axes(SIZE), b.op("Sub", b.axes(1), rest))
    return b.op("Concat", nothing, b.axes(-1), length(b), once, axis=0)


def of_rests(b: PositionedBuilder, x: str) -> str:
    """As TorchScript's unflatten: an axis from the end by Mod, and a size minus a remainder that is always 0."""
    index = b.op("Reshape", b.op("Mod", b.axes(-2), b.axes(4)), b.axes(-1))
    last = b.op("Slice", b.op("Shape", x), index, b.constant([2**63 - 1], np.int64))
    whole = b.op("Sub", b.op("Mul", batch(b), b.axes(HEADS)), b.op("Mod", b.op("Mul", batch(b), b.axes(4)), batch(b)))
    return b.op("Concat", whole, last, axis=0)


TARGETS = [
    flatten, by_shapes_with_ends, by_a_split, by_a_constant_of_no_elements, by_a_gather_of_nothing, by_numbers,
    of_powers, tile, of_rests,
]  # fmt: skip


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("target", TARGETS)
def test_heads_merged_with_sequences(target: Target, interface: str) -> None:
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (b.op("Reshape", output, target(b, output)) for output in (b.split(x), b.split(x), b.split(x)))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    apart = b.op("Concat", batch(b), b.axes(HEADS), length(b), length(b), axis=0)
    weights = b.op("Softmax", b.op("Add", b.op("Reshape", scores, apart), b.padding_mask()), axis=-1)
    weights = b.op(
        "Reshape", weights, b.op("Concat", part(b, weights, 0, 0), b.axes(-1), part(b, weights, 2, 4), axis=0)
    )
    context = b.op("Concat", batch(b), b.axes(HEADS), length(b), b.axes(SIZE), axis=0)
    context = b.op("Transpose", b.op("Reshape", b.op("MatMul", weights, v), context), perm=[0, 2, 1, 3])
    joined = b.op(
        "Reshape", context, b.op("Concat", part(b, context, 0, 2), b.axes(-1), part(b, context, 4, 4), axis=0)
    )
    model = with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result)


def test_a_remainder_with_the_sign_of_the_dividend_is_not_taken_for_one_with_that_of_the_divisor() -> None:
    """fmod(-1, 3) is -1, whereas Mod gives 2."""
    b = PositionedBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    rest = b.op("Mod", b.axes(-1), b.axes(3), fmod=1)
    model = with_output(b.op("Mul", x, b.op("Cast", rest, to=TensorProto.FLOAT)), b, TOKENS)
    result = rewrite(model, strict=True)
    assert_agree(model, result)


def test_sizes_that_nobody_knows_are_refused_with_the_node() -> None:
    b = PositionedBuilder()
    x = b.attend(b.embedding(), *(b.split(b.embedding()) for _ in range(3)), b.padding_mask())
    long = b.op("Cast", length(b), to=TensorProto.FLOAT)
    long = b.op("Cast", b.op("Sqrt", b.op("Mul", long, long)), to=TensorProto.INT64)
    apart = b.op("Reshape", x, b.op("Concat", batch(b), long, b.axes(-1), axis=0))
    name = b.nodes[-1].name
    model = with_output(b.norm(apart), b, TOKENS)
    with pytest.raises(RewriteError, match=f"'{name}' \\(Reshape\\) makes a tensor of unknown sizes"):
        rewrite(model)
