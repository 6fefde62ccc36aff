# SPDX-License-Identifier: Apache-2.0
"""The operators of GEMMs, PadfreeLinear and those of 8 bits, and PadfreePostNorm, whose sums they norm."""

from __future__ import annotations

from typing import Literal

from .spec import INT32_MAX, AttributeSpec, Condition, OperatorSpec, PluginRange, TensorSpec, flag, later, when, without

ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu", "silu", "sigmoid")

MOMENTS_GROUP = 64
"""How many columns of a row share one entry of PadfreeLinear's moments."""
NORMED_HEAD = 128
"""How many columns the heads have that PadfreeLinear norms."""
WIDE_HEAD = 256
"""The same with wide_heads."""
MAX_NORMED_WIDTH = 4096
"""How many columns the widest rows have that PadfreeLinear norms."""

EPSILON = AttributeSpec("epsilon", "float", "added to the variance (or mean square)", minimum=0.0)
_HAS_MOMENTS = flag("has_moments", "whether moments are an output, too")
_PLAIN = Condition("activation", ("none",))
_ROTATES = Condition("rotary_features")
_ALWAYS = (Condition("activation", ACTIVATIONS),)

_ACTIVATION = AttributeSpec(
    "activation",
    "string",
    "applied to the product and its bias; gelu uses erf, gelu_tanh the approximation by tanh",
    allowed=ACTIVATIONS,
    selects_body=True,
)
_EPILOGUE_FLAGS = (
    flag("has_residual", "whether residual exists"),
    flag("has_x_moments", "whether x_moments exist"),
    flag("has_residual_moments", "whether residual_moments and residual_scale exist"),
    _HAS_MOMENTS,
    flag("gated", "whether columns come in blocks of u and v, and y is activation(u) * v"),
    flag("rms", "1: RMS norm of x and of the residual, without subtracting the mean"),
    AttributeSpec(
        "rotary_features",
        "int",
        "how many columns, from the first on, are rotated in pairs: a multiple of 16 up to N, or 0",
        minimum=0,
        maximum=INT32_MAX,
        selects_body=True,
        letter="C",
        plugin=PluginRange(multiple_of=16),
    ),
    AttributeSpec("x_epsilon", "float", "added to the variance of x, with x_moments", minimum=0.0),
    AttributeSpec(
        "residual_epsilon", "float", "added to the variance of the residual, with residual_moments", minimum=0.0
    ),
)
"""The other attributes that both operators have."""
_NORMS_HEADS = later(flag("norms_heads", "whether the columns that are rotated are heads with norms"))
_WIDE_HEADS = later(flag("wide_heads", "whether heads with norms have 256 columns, not 128"))
_EPILOGUE_REQUIRES = (
    (when("has_residual_moments"), when("has_residual")),
    (when("has_residual_moments"), without("has_x_moments")),
    (when("has_residual_moments"), _PLAIN),
    (when("has_moments"), _PLAIN),
    (when("gated"), without("has_residual")),
    (when("gated"), without("has_moments")),
    (_ROTATES, _PLAIN),
    (_ROTATES, without("has_residual")),
    (_ROTATES, without("has_moments")),
    (_ROTATES, without("gated")),
)

LINEAR = OperatorSpec(
    "PadfreeLinear",
    "Computes activation(x weight + bias) + residual, with everything after the product in float32. K and N are "
    "multiples of 8. moments[g,t] are the mean of y[t,64g:64g+64] and the sum of squared deviations from it. With "
    "x_moments, which are those of x, the product becomes x weight / sqrt(variance + x_epsilon), with the variance of "
    "each row of x. If every column of the weight sums to 0, the row's mean adds nothing. With residual_moments, the "
    "residual becomes (residual - mean) / sqrt(variance + residual_epsilon) * residual_scale. With rms, no mean is "
    "subtracted, and the mean square replaces the variance. Rows with moments have a multiple of 64 columns, at most "
    "4096. With gated, columns come in blocks of 16: 8 of u and the 8 of v that belong to them (N is a multiple of "
    "16), and y, of N/2 columns, is activation(u) * v. The first C = rotary_features columns come in blocks of 16: "
    "8 of x1 and the 8 of x2 that are their pairs. After norm and bias, pair p = 8 * block + index is rotated by "
    "positions[t] * frequencies[p], as by PadfreeRotary. With norms_heads, every 128 of these columns are a head "
    "(with wide_heads, every 256) that is divided by sqrt(mean square + residual_epsilon) and multiplied by head_scale "
    "before it is rotated; only Hopper has kernels for that.",
    inputs=(
        TensorSpec("x", "act", "[T,K]"),
        TensorSpec("weight", "act", "[K,N]"),
        TensorSpec("bias", "act", "[N]", when("has_bias")),
        TensorSpec("residual", "act", "[T,N]", when("has_residual")),
        TensorSpec("x_moments", "float32", "[K/64,T,2]", when("has_x_moments")),
        TensorSpec("residual_moments", "float32", "[N/64,T,2]", when("has_residual_moments")),
        TensorSpec("residual_scale", "act", "[N]", when("has_residual_moments")),
        TensorSpec("positions", "int32", "[T]", _ROTATES),
        TensorSpec("frequencies", "float32", "[C/2]", _ROTATES),
        TensorSpec("head_scale", "act", "[C]", when("norms_heads")),
    ),
    outputs=(
        TensorSpec("y", "act", "[T,N]", without("gated")),
        TensorSpec("y", "act", "[T,N/2]", when("gated")),
        TensorSpec("moments", "float32", "[N/64,T,2]", when("has_moments")),
    ),
    attributes=(_ACTIVATION, flag("has_bias", "whether bias exists"), *_EPILOGUE_FLAGS, _NORMS_HEADS, _WIDE_HEADS),
    requires=(*_EPILOGUE_REQUIRES, (when("norms_heads"), _ROTATES), (when("wide_heads"), when("norms_heads"))),
    plugin_precisions=("fp16", "bf16"),
    in_half=_ALWAYS,
    measurement="choices",
)

POST_NORM = OperatorSpec(
    "PadfreePostNorm",
    "Computes residual + x / sqrt(mean square of x + epsilon) * gamma for rows of N columns, a multiple of 64 up to "
    "4096, in float32. gamma is a constant. moments are those of y, as PadfreeLinear gives them.",
    inputs=(
        TensorSpec("x", "act", "[T,N]"),
        TensorSpec("residual", "act", "[T,N]"),
        TensorSpec("gamma", "act", "[N]"),
    ),
    outputs=(
        TensorSpec("y", "act", "[T,N]"),
        TensorSpec("moments", "float32", "[N/64,T,2]", when("has_moments")),
    ),
    attributes=(EPSILON, _HAS_MOMENTS),
    plugin_precisions=("fp16", "bf16"),
    in_half=(Condition("has_moments", (0, 1)),),
)

MAX_SCALE = 2.0**14
"""The largest y_scale, and the largest 1 / y_scale: e4m3 itself reaches from 2^-9 to 448."""
Y_SCALE = AttributeSpec("y_scale", "float", "the divisor of results in e4m3", minimum=1 / MAX_SCALE, maximum=MAX_SCALE)


def _results_in(narrow: str) -> AttributeSpec:
    return AttributeSpec(
        "results",
        "string",
        f"the types in which results are written: act, {narrow}, or both",
        allowed=("act", narrow, "both"),
        selects_body=True,
    )


def _outputs_in(narrow: str, element: Literal["fp8", "int8"], writes_narrow: Condition) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("y", "act", "[T,N]", WRITES_ACT, without("gated")),
        TensorSpec("y", "act", "[T,N/2]", WRITES_ACT, when("gated")),
        TensorSpec(f"y_{narrow}", element, "[T,N]", writes_narrow, without("gated")),
        TensorSpec(f"y_{narrow}", element, "[T,N/2]", writes_narrow, when("gated")),
        TensorSpec("moments", "float32", "[N/64,T,2]", when("has_moments")),
    )


def _requires_in(narrow: str) -> tuple[tuple[Condition, Condition], ...]:
    return (
        *_EPILOGUE_REQUIRES,
        (when("has_moments"), WRITES_ACT),
        (when("gated"), Condition("results", ("act", narrow))),
        (_ROTATES, Condition("results", ("act",))),
    )


RESULTS = _results_in("e4m3")
WRITES_ACT = Condition("results", ("act", "both"))
WRITES_E4M3 = Condition("results", ("e4m3", "both"))

LINEAR_FP8 = OperatorSpec(
    "PadfreeLinearFp8",
    "PadfreeLinear for e4m3 numbers. The product is x weight^T * scale, where scale[n] is the scale of x times that of "
    "row n of the weight. x_moments are those of the rows before they were rounded to x. y_e4m3 are the results "
    "divided by y_scale and rounded to nearest even; beyond 448 they become 448. K and N are multiples of 16, and N of "
    "32 with gated.",
    inputs=(
        TensorSpec("x", "fp8", "[T,K]"),
        TensorSpec("weight", "fp8", "[N,K]"),
        TensorSpec("scale", "float32", "[N]"),
        TensorSpec("bias", "act", "[N]"),
        *LINEAR.inputs[3:-1],
    ),
    outputs=_outputs_in("e4m3", "fp8", WRITES_E4M3),
    attributes=(
        _ACTIVATION,
        *_EPILOGUE_FLAGS,
        RESULTS,
        Y_SCALE,
    ),
    requires=_requires_in("e4m3"),
    plugin_precisions=LINEAR.plugin_precisions,
    in_half=_ALWAYS,
    measurement="choices",
)

_WRITES_INT8 = Condition("results", ("int8", "both"))

LINEAR_INT8 = OperatorSpec(
    "PadfreeLinearInt8",
    "PadfreeLinear for int8 numbers. The product, exact in int32, is x weight^T * scale, where scale[n] is the scale "
    "of x times that of row n of the weight. x_moments are those of the rows before they were rounded to x. y_int8 are "
    "the results times y_factors of their columns, rounded to nearest even; beyond -128 and 127 they become these, and "
    "NaN becomes 0. K and N are multiples of 16, and N of 32 with gated.",
    inputs=(
        TensorSpec("x", "int8", "[T,K]"),
        TensorSpec("weight", "int8", "[N,K]"),
        *LINEAR_FP8.inputs[2:],
        TensorSpec("y_factors", "float32", "[N]", _WRITES_INT8, without("gated")),
        TensorSpec("y_factors", "float32", "[N/2]", _WRITES_INT8, when("gated")),
    ),
    outputs=_outputs_in("int8", "int8", _WRITES_INT8),
    attributes=(_ACTIVATION, *_EPILOGUE_FLAGS, _results_in("int8")),
    requires=_requires_in("int8"),
    plugin_precisions=LINEAR.plugin_precisions,
    in_half=_ALWAYS,
)
