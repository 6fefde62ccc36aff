# SPDX-License-Identifier: Apache-2.0
"""Layer norms and RMS norms by what they compute, however mean, variance, root and scale are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree, with_interfaces_in_turn
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, with_output

Step = Callable[[EncoderBuilder, str], str]
Spread = Callable[[EncoderBuilder, str, str, Step], str]  # takes x, x without its mean, and how means are written


def reduce(b: EncoderBuilder, x: str) -> str:
    return b.op("ReduceMean", x, axes=[-1], keepdims=1)


def divided_first(b: EncoderBuilder, x: str) -> str:
    """(x.sum(-1) / W).unsqueeze(-1)."""
    total = b.op("ReduceSum", x, b.axes(-1), keepdims=0)
    return b.op("Unsqueeze", b.op("Div", total, b.constant(HIDDEN)), b.axes(-1))


def multiplied_first(b: EncoderBuilder, x: str) -> str:
    total = b.op("ReduceSum", x, b.axes(2), keepdims=0)
    return b.op("Reshape", b.op("Mul", b.constant(1 / HIDDEN), total), b.axes(0, 0, 1))


def by_a_column(b: EncoderBuilder, x: str) -> str:
    return b.op("MatMul", x, b.constant(np.full((HIDDEN, 1), 1 / HIDDEN)))


def by_a_vector(b: EncoderBuilder, x: str) -> str:
    return b.op("Unsqueeze", b.op("MatMul", x, b.constant(np.full(HIDDEN, 1 / HIDDEN))), b.axes(2))


def by_ones(b: EncoderBuilder, x: str) -> str:
    return b.op("Div", b.op("MatMul", x, b.constant(np.ones((HIDDEN, 1)))), b.constant(HIDDEN))


def by_an_einsum(b: EncoderBuilder, x: str) -> str:
    total = b.op("Einsum", x, equation="bsd->bs")
    return b.op("Unsqueeze", b.op("Div", total, b.constant(HIDDEN)), b.axes(-1))


def squares(b: EncoderBuilder, _: str, rest: str, mean: Step) -> str:
    return mean(b, b.op("Mul", rest, rest))


def powers(b: EncoderBuilder, _: str, rest: str, mean: Step) -> str:
    return mean(b, b.op("Pow", rest, b.constant(2.0)))


def absolute_powers(b: EncoderBuilder, _: str, rest: str, mean: Step) -> str:
    """As jax writes jnp.square(jnp.abs(x))."""
    size = b.op("Abs", rest)
    return mean(b, b.op("Mul", size, size))


def by_moments(b: EncoderBuilder, x: str, _: str, mean: Step) -> str:
    """E[x^2] - E[x]^2, as in Flax."""
    centre = mean(b, x)
    return b.op("Sub", mean(b, b.op("Mul", x, x)), b.op("Mul", centre, centre))


def by_moments_above_zero(b: EncoderBuilder, x: str, rest: str, mean: Step) -> str:
    return b.op("Max", b.constant(0.0), by_moments(b, x, rest, mean))


def from_samples(b: EncoderBuilder, _: str, rest: str, mean: Step) -> str:
    """The variance of a sample, times (W - 1) / W."""
    del mean
    total = b.op("ReduceSum", b.op("Mul", rest, rest), b.axes(-1), keepdims=1)
    variance = b.op("Div", total, b.constant(HIDDEN - 1))
    return b.op("Mul", variance, b.constant((HIDDEN - 1) / HIDDEN))


def reciprocal(b: EncoderBuilder, x: str) -> str:
    return b.op("Reciprocal", b.op("Sqrt", x))


def power(b: EncoderBuilder, x: str) -> str:
    return b.op("Pow", x, b.constant(-0.5))


def inverse_power(b: EncoderBuilder, x: str) -> str:
    return b.op("Div", b.constant(1.0), b.op("Pow", x, b.constant(0.5)))


def root_of_inverse(b: EncoderBuilder, x: str) -> str:
    return b.op("Sqrt", b.op("Reciprocal", x))


def affine(b: EncoderBuilder, x: str) -> str:
    return b.op("Add", b.op("Mul", x, b.weight(HIDDEN, center=1.0)), b.weight(HIDDEN))


def without_beta(b: EncoderBuilder, x: str) -> str:
    return b.op("Mul", b.weight(HIDDEN, center=1.0), x)


def without_gamma(b: EncoderBuilder, x: str) -> str:
    return b.op("Add", x, b.weight(HIDDEN))


def bare(_: EncoderBuilder, x: str) -> str:
    return x


def one_more(b: EncoderBuilder, x: str) -> str:
    """Gemma's scale is the learned weight plus 1."""
    return b.op("Mul", x, b.op("Add", b.weight(HIDDEN), b.constant(1.0)))


def norm(
    b: EncoderBuilder, x: str, *, mean: Step = reduce, spread: Spread = squares, root: Step = reciprocal,
    scaled: Step = affine, rms: bool = False,
) -> str:  # fmt: skip
    rest = x if rms else b.op("Sub", x, mean(b, x))
    inverse = root(b, b.op("Add", spread(b, x, rest, mean), b.constant(1e-5)))
    return scaled(b, b.op("Mul", rest, inverse))


def divide(b: EncoderBuilder, x: str, *, scaled: Step, rms: bool = False) -> str:
    """x without its mean, divided by the root."""
    rest = x if rms else b.op("Sub", x, reduce(b, x))
    root = b.op("Sqrt", b.op("Add", reduce(b, b.op("Pow", rest, b.constant(2.0))), b.constant(1e-5)))
    return scaled(b, b.op("Div", rest, root))


MEANS = (reduce, divided_first, multiplied_first, by_a_column, by_a_vector, by_ones, by_an_einsum)
ROOTS = (reciprocal, power, inverse_power, root_of_inverse)
SCALES = (affine, without_beta, without_gamma, bare, one_more)
NORMS = {
    **{f"mean {item.__name__}": partial(norm, mean=item) for item in MEANS},
    **{f"rms mean {item.__name__}": partial(norm, mean=item, rms=True, scaled=without_beta) for item in MEANS},
    **{
        f"variance {item.__name__}": partial(norm, spread=item)
        for item in (squares, powers, absolute_powers, by_moments, by_moments_above_zero, from_samples)
    },
    **{f"root {item.__name__}": partial(norm, root=item) for item in ROOTS},
    **{f"rms root {item.__name__}": partial(norm, root=item, rms=True, scaled=without_beta) for item in ROOTS},
    **{f"scale {item.__name__}": partial(norm, scaled=item) for item in SCALES},
    **{f"divided {item.__name__}": partial(divide, scaled=item) for item in SCALES},
    **{f"rms {item.__name__}": partial(norm, scaled=item, rms=True) for item in SCALES},
    **{f"rms divided {item.__name__}": partial(divide, scaled=item, rms=True) for item in SCALES},
}


@pytest.mark.parametrize(("name", "interface"), with_interfaces_in_turn(NORMS))
def test_every_spelling(name: str, interface: str) -> None:
    b = EncoderBuilder()
    x = b.embedding()
    output = NORMS[name](b, b.op("Add", b.attention(x, b.padding_mask()), x))
    model = with_output(b.linear(output, HIDDEN, HIDDEN), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeLayerNorm"] == 1
    assert not {"Sqrt", "Pow", "Reciprocal"} & {node.op_type for node in result.model.graph.node}
    assert_agree(model, result)


def not_quite(b: EncoderBuilder, x: str, _: str, mean: Step) -> str:
    """E[x^2] minus another number than E[x]^2."""
    centre = b.op("Mul", mean(b, x), b.constant(0.5))
    return b.op("Sub", mean(b, b.op("Mul", x, x)), b.op("Mul", centre, centre))


def with_other_mean(b: EncoderBuilder, x: str, _: str, mean: Step) -> str:
    """E[x^2] minus the square of another tensor's mean."""
    centre = mean(b, b.op("Tanh", x))
    return b.op("Sub", mean(b, b.op("Mul", x, x)), b.op("Mul", centre, centre))


def of_samples(b: EncoderBuilder, _: str, rest: str, mean: Step) -> str:
    """The variance of a sample, without the correction."""
    del mean
    return b.op("Div", b.op("ReduceSum", b.op("Mul", rest, rest), b.axes(-1), keepdims=1), b.constant(HIDDEN - 1))


def uneven(b: EncoderBuilder, x: str) -> str:
    column = np.full((HIDDEN, 1), 1 / HIDDEN)
    column[3] *= 1.5
    return b.op("MatMul", x, b.constant(column))


def of_a_third(b: EncoderBuilder, x: str) -> str:
    return b.op("Reciprocal", b.op("Pow", x, b.constant(1 / 3)))


def after_the_root(b: EncoderBuilder, x: str) -> str:
    """Epsilon is added to the deviation."""
    rest = b.op("Sub", x, reduce(b, x))
    root = b.op("Sqrt", reduce(b, b.op("Mul", rest, rest)))
    return affine(b, b.op("Div", rest, b.op("Add", root, b.constant(1e-2))))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    "near",
    [
        partial(norm, spread=not_quite), partial(norm, spread=with_other_mean), partial(norm, spread=of_samples),
        partial(norm, mean=uneven), partial(norm, root=of_a_third), after_the_root,
    ],
)  # fmt: skip
def test_what_is_nearly_a_norm_is_none(near: Step, interface: str) -> None:
    b = EncoderBuilder()
    x = b.embedding()
    output = near(b, b.op("Add", b.attention(x, b.padding_mask()), x))
    model = with_output(b.linear(output, HIDDEN, HIDDEN), b, TOKENS)
    result = rewrite(model, interface=interface)
    assert "PadfreeLayerNorm" not in result.report.plugins
    assert_agree(model, result)
