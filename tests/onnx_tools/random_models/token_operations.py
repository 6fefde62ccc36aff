# SPDX-License-Identifier: Apache-2.0
"""Operations on tokens that are packed, in less obvious forms, for random graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from tests.onnx_tools.passes.position_forms import ROWS
from tests.onnx_tools.passes.sum_forms import BY_COUNT, EXACT, Form
from tests.onnx_tools.passes.token_forms import FORMS
from tests.support.encoder import HEADS, HIDDEN

if TYPE_CHECKING:
    from .random_graphs import RandomGraph

Operation = Callable[["RandomGraph", str, str], str]


def _grade(b: RandomGraph, x: str) -> str:
    """Whole numbers to choose by: numbers that differ in their last bits would be reordered by rounding of sums.

    Sums and means of such numbers are fractions, which the offset keeps away from the points where rounding changes.
    """
    return b.op("Round", b.op("Add", b.op("Mul", x, b.constant(64.0)), b.constant(0.3)))


def _largest(b: RandomGraph, x: str, _: str) -> str:
    """Weights chosen by the largest of three scores, as in mixtures of experts."""
    scores = b.op("Softmax", b.linear(x, HIDDEN, 3), axis=-1)
    largest, index = f"v{len(b.nodes)}", f"i{len(b.nodes)}"
    b.op("TopK", scores, b.axes(1), axis=-1, output=largest)
    b.nodes[-1].output.append(index)
    weights = b.op("Gather", b.weight(3, HIDDEN, HIDDEN), b.op("Squeeze", index, b.axes(2)), axis=0)
    return b.op("Mul", b.op("Einsum", x, weights, equation="bse,bsef->bsf"), largest)


def _sort(b: RandomGraph, x: str, y: str) -> str:
    """Elements of y in the order of x's."""
    values, order = f"v{len(b.nodes)}", f"i{len(b.nodes)}"
    b.op("TopK", _grade(b, x), b.axes(HIDDEN), axis=2, output=values)
    b.nodes[-1].output.append(order)
    return b.op("Add", values, b.op("GatherElements", y, order, axis=2))


def _one_hot(b: RandomGraph, x: str, _: str) -> str:
    index = b.op("ArgMax", _grade(b, x), axis=-1, keepdims=0)
    actual = b.op("OneHot", index, b.constant(HIDDEN, np.int64), b.constant([0.0, 1.0]), axis=-1)
    return b.op("MatMul", actual, b.weight(HIDDEN, HIDDEN))


def _one_hot_first(b: RandomGraph, x: str, _: str) -> str:
    """The new axis between batch and sequence."""
    index = b.op("ArgMin", _grade(b, x), axis=2, keepdims=0)
    actual = b.op("OneHot", index, b.constant(HIDDEN, np.int64), b.constant([0.0, 1.0]), axis=1)
    return b.op("Transpose", actual, perm=[0, 2, 1])


def _widen(b: RandomGraph, x: str, _: str) -> str:
    """0.5 is padded to both sides of every token's elements, which are copied, scaled and averaged."""
    wide = b.op("Pad", x, b.axes(0, 0, 2, 0, 0, HIDDEN - 2), b.constant(0.5), mode="constant")
    copies = b.op("Tile", b.op("Unsqueeze", wide, b.axes(2)), b.axes(1, 1, 3, 1))
    scaled = b.op("Mul", copies, b.constant(np.linspace(0.5, 1.5, 3).reshape(3, 1)))
    return b.linear(b.op("ReduceMean", scaled, axes=[2], keepdims=0), 2 * HIDDEN, HIDDEN)


def _triangle(b: RandomGraph, x: str, _: str) -> str:
    """Every token as a matrix of its own, of which half is kept."""
    square = b.op("Reshape", x, b.axes(0, 0, 4, HIDDEN // 4))
    return b.op("Reshape", b.op("Trilu", square, upper=0), b.axes(0, 0, HIDDEN))


def _beside_first(b: RandomGraph, x: str, _: str) -> str:
    """The first token next to every token, with one product for both."""
    b.reads_first = True
    first = b.op("Slice", x, b.axes(0), b.axes(1), b.axes(1))
    shape = b.op("Concat", b.op("Shape", "input_ids"), b.axes(HIDDEN), axis=0)
    return b.linear(b.op("Concat", x, b.op("Expand", first, shape), axis=2), 2 * HIDDEN, HIDDEN)


def _by_ids(b: RandomGraph, x: str, _: str) -> str:
    """Tokens with one particular id get another factor."""
    same = b.op("Cast", b.op("Equal", "input_ids", b.constant(3, np.int64)), to=TensorProto.FLOAT)
    return b.op("Mul", x, b.op("Add", b.op("Unsqueeze", same, b.axes(2)), b.constant(0.5)))


def _products_of_own_heads(b: RandomGraph, x: str, y: str) -> str:
    """The products of every token's heads with each other."""
    heads, others = (b.op("Reshape", item, b.axes(0, 0, HEADS, HIDDEN // HEADS)) for item in (x, y))
    scores = b.op("MatMul", heads, b.op("Transpose", others, perm=[0, 1, 3, 2]))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), others)
    return b.op("Reshape", mixed, b.axes(0, 0, HIDDEN))


def _add(form: Form) -> Operation:
    return lambda b, x, y: b.op("Add", y, b.op("Unsqueeze", form(b, x), b.axes(1)))


def _by_count(form: Form) -> Operation:
    def operation(b: RandomGraph, x: str, y: str) -> str:
        b.reads_first = True  # the slot at a count: right for right-padded batches only
        return _add(form)(b, x, y)

    return operation


def _with_rows(rows: Callable[[RandomGraph], str]) -> Operation:
    return lambda b, x, _: b.op("Add", x, rows(b))


def _layer(form: Form) -> Operation:
    return lambda b, x, _: form(b, x)


TOKEN_OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "largest": _largest,
        "sorted": _sort,
        "one hot": _one_hot,
        "one hot first": _one_hot_first,
        "widened": _widen,
        "triangle": _triangle,
        "beside first": _beside_first,
        "by ids": _by_ids,
        "own products": _products_of_own_heads,
        **{f"layer {name}": _layer(form) for name, form in FORMS.items()},
        **{f"sum {name}": _add(form) for name, (form, _) in EXACT.items()},
        **{f"taken {name}": _by_count(form) for name, form in BY_COUNT.items()},
        **{f"positions {rows.__name__}": _with_rows(rows) for rows in ROWS},
    }
)
