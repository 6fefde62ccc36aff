# SPDX-License-Identifier: Apache-2.0
"""What GEMMs compute, in standard ONNX operators: x in the activations' type, in e4m3 or in int8."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from .body_builder import BodyBuilder
from .linear_specs import MOMENTS_GROUP, NORMED_HEAD, WIDE_HEAD
from .spec import AttributeValue


def rotated_pairs(b: BodyBuilder, pairs: str, angle: str, axis: int) -> str:
    """float32 `pairs`, whose members lie along `axis`, rotated by `angle`, which has no such axis."""
    first, second = (b.op("Gather", pairs, i, axis=axis) for i in range(2))
    cosine, sine = b.op("Cos", angle), b.op("Sin", angle)
    x = b.op("Sub", b.op("Mul", first, cosine), b.op("Mul", second, sine))
    y = b.op("Add", b.op("Mul", second, cosine), b.op("Mul", first, sine))
    return b.op("Concat", b.unsqueeze(x, axis), b.unsqueeze(y, axis), axis=axis)


def linear(b: BodyBuilder) -> None:
    """Writes the body of PadfreeLinear."""
    total = b.op("MatMul", b.load("x"), b.load("weight"))
    y = _epilogue(b, total, "bias" if b.attributes["has_bias"] else None)
    b.output("y", y)
    output_moments(b, y)


def linear_fp8(b: BodyBuilder) -> None:
    """Writes the body of PadfreeLinearFp8: e4m3 numbers are exact in float32."""
    x, weight = (b.load_e4m3(name) for name in ("x", "weight"))
    total = b.op("Mul", b.op("MatMul", x, b.op("Transpose", weight, perm=[1, 0])), "scale")
    y = _epilogue(b, total, "bias")
    if b.attributes["results"] != "e4m3":
        b.output("y", y)
    if b.attributes["results"] != "act":
        b.output_e4m3("y_e4m3", y, b.attribute("y_scale"))
    output_moments(b, y)


def linear_int8(b: BodyBuilder) -> None:
    """Writes the body of PadfreeLinearInt8. Sums are whole numbers in float32, which has all up to 2^24.

    Larger ones are rounded, and so are partial sums, which int32 keeps: by 5 in 53 million with K = 4096. MatMulInteger
    takes onnxruntime 5 to 10 times as long with both factors in int8; with one in uint8 it is fast, but CPUs without
    VNNI saturate sums of two products.
    """
    x, weight = (b.op("Cast", name, to=TensorProto.FLOAT) for name in ("x", "weight"))
    total = b.op("Mul", b.op("MatMul", x, b.op("Transpose", weight, perm=[1, 0])), "scale")
    y = _epilogue(b, total, "bias")
    if b.attributes["results"] != "int8":
        b.output("y", y)
    if b.attributes["results"] != "act":
        b.output_int8("y_int8", b.op("Mul", y, "y_factors"))
    output_moments(b, y)


def _epilogue(b: BodyBuilder, total: str, bias: str | None) -> str:
    """The results, in float32, of the sums of products `total`, float32 [T,N]."""
    if b.attributes["has_x_moments"]:
        _, root = _mean_and_root(b, "x_moments", "x_epsilon")
        total = b.op("Div", total, root)
    if bias is not None:
        total = b.op("Add", total, b.load(bias))
    if b.attributes.get("norms_heads"):
        total = _normed_heads(b, total)
    if b.attributes["rotary_features"]:
        total = _rotated_columns(b, total)
    if b.attributes["gated"]:
        blocks = _blocks(b, total)
        u, v = (b.op("Gather", blocks, i, axis=2) for i in range(2))  # [T,N/16,8]
        half = b.op("Div", b.dim(total, 1), [2])
        gate = b.op("Mul", _activate(b, u, b.attributes["activation"]), v)
        return b.reshape_to(gate, b.dim(total, 0), half)
    y = _activate(b, total, b.attributes["activation"])
    if not b.attributes["has_residual"]:
        return y
    residual = b.load("residual")
    if b.attributes["has_residual_moments"]:
        mean, root = _mean_and_root(b, "residual_moments", "residual_epsilon")
        if not b.attributes["rms"]:
            residual = b.op("Sub", residual, mean)
        residual = b.op("Mul", b.op("Div", residual, root), b.load("residual_scale"))
    return b.op("Add", y, residual)


def _blocks(b: BodyBuilder, columns: str) -> str:
    """[T,N] as [T,N/16,2,8]: each block of 8 columns with the 8 columns that belong to it."""
    count = b.op("Div", b.dim(columns, 1), [16])
    return b.reshape_to(columns, b.dim(columns, 0), count, b.integers(2, 8))


def _normed_heads(b: BodyBuilder, columns: str) -> str:
    """[T,N] float32 with RMS norms of the heads among the first rotary_features."""
    first, count, rest = _first_columns(b, columns)
    size = b.integers(WIDE_HEAD if b.attributes.get("wide_heads") else NORMED_HEAD)
    heads = b.reshape_to(first, b.dim(columns, 0), b.op("Div", count, size), size)
    square = b.along("ReduceMean", b.op("Mul", heads, heads), -1, keepdims=1)
    root = b.op("Sqrt", b.op("Add", square, b.attribute("residual_epsilon")))
    normed = b.reshape_to(b.op("Div", heads, root), b.dim(columns, 0), count)
    scaled = b.op("Mul", normed, b.load("head_scale"))
    return b.op("Concat", scaled, rest, axis=1)


def _rotated_columns(b: BodyBuilder, columns: str) -> str:
    """[T,N] float32 with the pairs among the first rotary_features rotated."""
    first, count, rest = _first_columns(b, columns)
    angle = b.op("Mul", b.unsqueeze(b.op("Cast", "positions", to=TensorProto.FLOAT), 1), "frequencies")  # [T,P]
    angle = b.reshape_to(angle, b.dim(columns, 0), b.op("Div", b.dim(angle, 1), [8]), b.integers(8))
    rotated = b.reshape_to(rotated_pairs(b, _blocks(b, first), angle, 2), b.dim(columns, 0), count)
    return b.op("Concat", rotated, rest, axis=1)


def _first_columns(b: BodyBuilder, columns: str) -> tuple[str, str, str]:
    """The first rotary_features columns of [T,N], their number, and the other columns."""
    count = b.attribute_vector("rotary_features")
    rest = b.op("Slice", columns, count, [np.iinfo(np.int64).max], [1])
    return b.op("Slice", columns, [0], count, [1]), count, rest


def _mean_and_root(b: BodyBuilder, moments: str, epsilon: str) -> tuple[str, str]:
    """Mean and sqrt(variance + epsilon) of whole rows, float32 [T,1], from the moments [G,T,2] of their groups.

    With rms, the mean square takes the place of the variance.
    """
    means, squares = (b.op("Gather", moments, [i], axis=2) for i in range(2))  # [G,T,1]
    mean = b.along("ReduceMean", means, 0, keepdims=0)
    deviation = means if b.attributes["rms"] else b.op("Sub", means, mean)
    inside = b.op("Div", squares, b.const(MOMENTS_GROUP, np.float32))
    variance = b.along("ReduceMean", b.op("Add", inside, b.op("Mul", deviation, deviation)), 0, keepdims=0)
    return mean, b.op("Sqrt", b.op("Add", variance, b.attribute(epsilon)))


def output_moments(b: BodyBuilder, y: str) -> None:
    """Makes the moments of y an output, if the node has it."""
    if b.attributes["has_moments"]:
        b.output_as_is("moments", _moments(b, y))


def _moments(b: BodyBuilder, y: str) -> str:
    """float32 [M,T,2]: mean and sum of squared deviations of each row's groups of columns."""
    group = b.integers(MOMENTS_GROUP)
    split = b.reshape_to(y, b.dim(y, 0), b.op("Div", b.dim(y, 1), group), group)  # [T,M,64]
    # Sums as products: in onnxruntime 1.31, a reduction over no rows has its input's shape.
    mean = b.op("MatMul", split, b.const(np.full((MOMENTS_GROUP, 1), 1 / MOMENTS_GROUP), np.float32))
    deviation = b.op("Sub", split, mean)
    squares = b.op("MatMul", b.op("Mul", deviation, deviation), b.const(np.ones((MOMENTS_GROUP, 1)), np.float32))
    return b.op("Transpose", b.op("Concat", mean, squares, axis=-1), perm=[1, 0, 2])


def _activate(b: BodyBuilder, x: str, activation: AttributeValue) -> str:
    """The activation of float32 values; Gelu is an operator only from opset 20 on."""
    if activation == "relu":
        return b.op("Relu", x)
    if activation == "sigmoid":
        return b.op("Sigmoid", x)
    if activation == "silu":
        return b.op("Mul", x, b.op("Sigmoid", x))
    if activation == "gelu":
        gate = b.op("Erf", b.op("Mul", x, math.sqrt(0.5)))
    elif activation == "gelu_tanh":
        cube = b.op("Mul", b.op("Mul", x, x), b.op("Mul", x, 0.044715))
        gate = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), math.sqrt(2 / math.pi)))
    else:
        return x
    half = b.op("Mul", x, 0.5)
    return b.op("Mul", half, b.op("Add", gate, 1.0))
