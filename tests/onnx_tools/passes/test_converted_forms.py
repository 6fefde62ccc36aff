# SPDX-License-Identifier: Apache-2.0
"""Norms, pools and slices as converters from TensorFlow and JAX write them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree, with_interfaces_in_turn
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, with_output

from .attention_forms import PositionedBuilder, attributes

LARGE = 2**31 - 1
Mean = Callable[[EncoderBuilder, str], str]


def reduce(b: EncoderBuilder, x: str) -> str:
    return b.op("ReduceMean", x, axes=[-1], keepdims=1)


def pool(b: EncoderBuilder, x: str) -> str:
    """A mean over the last of three axes, as tf2onnx writes it."""
    return b.op("GlobalAveragePool", x)


def without_its_axis(b: EncoderBuilder, x: str) -> str:
    return b.op("Unsqueeze", b.op("ReduceMean", x, axes=[2], keepdims=0), b.axes(-1))


def sum_up(b: EncoderBuilder, x: str) -> str:
    """A mean as jax2onnx writes it, with the squares of the variance inside the sum."""
    node = next((item for item in b.nodes if x in item.output), None)
    squares = node is not None and node.op_type == "Mul" and node.input[0] == node.input[1]
    if node is not None and squares:
        total = b.op("ReduceSumSquare", node.input[0], axes=[2], keepdims=0)
    else:
        total = b.op("ReduceSum", x, b.axes(2), keepdims=0)
    wide = b.op("Concat", b.op("Shape", total), b.axes(1), axis=0)
    return b.op("Div", b.op("Expand", b.op("Reshape", total, wide), wide), b.constant(HIDDEN))


def times_the_inverse(b: EncoderBuilder, x: str) -> str:
    return b.op("Mul", b.constant(1 / HIDDEN), b.op("ReduceSum", x, b.axes(-1), keepdims=1))


def statistics(b: EncoderBuilder, x: str, mean: Mean) -> tuple[str, str, str]:
    """The mean, x minus the mean, and 1 / sqrt(variance + epsilon)."""
    centre = mean(b, x)
    rest = b.op("Sub", x, centre)
    variance = b.op("Add", mean(b, b.op("Mul", rest, rest)), b.constant(1e-5))
    return centre, rest, b.op("Reciprocal", b.op("Sqrt", variance))


def of_tensorflow(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """tf.nn.batch_normalization over the last axis: x * factor + (beta - mean * factor)."""
    centre, _, inverse = statistics(b, x, mean)
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    shift = b.op("Sub", b.weight(HIDDEN), b.op("Mul", centre, factor))
    return b.op("Add", b.op("Mul", x, factor), shift)


def of_jax(b: EncoderBuilder, x: str, mean: Mean) -> str:
    _, rest, inverse = statistics(b, x, mean)
    scaled = b.op("Mul", b.op("Mul", rest, inverse), b.weight(HIDDEN, center=1.0))
    return b.op("Add", scaled, b.weight(HIDDEN))


def of_flax(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """The scale and the inverse root are multiplied first."""
    _, rest, inverse = statistics(b, x, mean)
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    return b.op("Add", b.op("Mul", rest, factor), b.weight(HIDDEN))


def of_keras(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """x * factor + (-mean * factor + beta)."""
    centre, _, inverse = statistics(b, x, mean)
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    shift = b.op("Add", b.op("Mul", b.op("Neg", centre), factor), b.weight(HIDDEN))
    return b.op("Add", b.op("Mul", x, factor), shift)


Norm = Callable[[EncoderBuilder, str, Mean], str]


@pytest.mark.parametrize(
    ("mean", "interface"), with_interfaces_in_turn([reduce, pool, without_its_axis, sum_up, times_the_inverse])
)
@pytest.mark.parametrize("norm", [of_tensorflow, of_jax, of_flax, of_keras])
def test_norms_by_factors(norm: Norm, mean: Mean, interface: str) -> None:
    b = EncoderBuilder()
    x = b.embedding()
    x = norm(b, b.op("Add", b.attention(x, b.padding_mask()), x), mean)
    model = with_output(x, b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeLayerNorm"] == 1
    assert "Sqrt" not in {node.op_type for node in result.model.graph.node}
    assert_agree(model, result)


def of_another_tensor(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """The variance belongs to another tensor than the one that is scaled."""
    _, _, inverse = statistics(b, x, mean)
    other = b.op("Sub", x, b.op("Mul", mean(b, x), b.constant(0.5)))
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    return b.op("Add", b.op("Mul", other, factor), b.weight(HIDDEN))


def with_another_shift(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """beta + mean * factor, whereas a norm has beta - mean * factor."""
    centre, _, inverse = statistics(b, x, mean)
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    return b.op("Add", b.op("Mul", x, factor), b.op("Add", b.weight(HIDDEN), b.op("Mul", centre, factor)))


def shifted_by_the_centre(b: EncoderBuilder, x: str, mean: Mean) -> str:
    """Keras' form, but the subtracted product is not the mean's."""
    centre, _, inverse = statistics(b, x, mean)
    factor = b.op("Mul", inverse, b.weight(HIDDEN, center=1.0))
    other = b.op("Neg", b.op("Mul", centre, b.constant(0.5)))
    shift = b.op("Add", b.op("Mul", other, factor), b.weight(HIDDEN))
    return b.op("Add", b.op("Mul", x, factor), shift)


def by_one_less(b: EncoderBuilder, x: str) -> str:
    """As torch's std computes it for samples."""
    return b.op("Div", b.op("ReduceSum", x, b.axes(-1), keepdims=1), b.constant(HIDDEN - 1))


@pytest.mark.parametrize(
    ("norm", "mean"),
    [
        (of_another_tensor, reduce),
        (with_another_shift, reduce),
        (shifted_by_the_centre, reduce),
        (of_jax, by_one_less),
    ],
)
def test_what_is_no_norm_stays(norm: Norm, mean: Mean) -> None:
    b = EncoderBuilder()
    x = b.embedding()
    x = norm(b, b.op("Add", b.attention(x, b.padding_mask()), x), mean)
    model = with_output(x, b, TOKENS)
    result = rewrite(model)
    assert "PadfreeLayerNorm" not in result.report.plugins
    assert_agree(model, result)


@pytest.mark.parametrize("order", [0, 1])
def test_scales_with_a_bias_of_zero(order: int) -> None:
    """PaddlePaddle's scale * x + 0 and 1 * x are ignored between a projection and its heads."""
    b = PositionedBuilder()
    x = b.embedding()
    zero, one = b.constant(np.zeros(1, np.float32)), b.constant(1.0)
    q = b.op("Mul", b.split(x), b.constant(0.5))
    q = b.op("Add", *((q, zero) if order else (zero, q)))
    k = b.op("Div", b.op("Sub", b.op("Mul", *((one, b.split(x)) if order else (b.split(x), one))), zero), one)
    model = with_output(b.attend(x, q, k, b.split(x), b.padding_mask()), b, TOKENS)
    result = rewrite(model, strict=True)
    assert attributes(result)[0]["qkv_layout"] == b"3HD"
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_slices_that_name_all_axes(interface: str) -> None:
    """x[:, 0:1, :] by a strided slice: the first token."""
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    first = b.op("Slice", x, b.axes(0, 0, 0), b.axes(LARGE, 1, LARGE), b.axes(0, 1, 2))
    model = with_output(b.op("Squeeze", first, b.axes(1)), b, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreePool"] == 3  # pools attention's result, what is added to it, and the sum
    assert_agree(model, result, only="prefix")


@pytest.mark.parametrize("interface", INTERFACES)
def test_slices_of_columns_that_name_all_axes(interface: str) -> None:
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    columns = b.op("Slice", x, b.axes(0, 0, 3), b.constant([LARGE, LARGE, 9], np.int64), b.axes(0, 1, 2))
    model = with_output(columns, b, [*TOKENS[:2], 6])
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)
