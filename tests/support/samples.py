# SPDX-License-Identifier: Apache-2.0
"""Valid attributes of every operator, in the variants that change tensors, and concrete sizes for the letters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from padfree.onnx_tools.operators import MOMENTS_GROUP, OPERATORS
from padfree.onnx_tools.operators.spec import AttributeSpec, AttributeValue, TensorSpec

from .attention_tasks import most_entries

LETTERS = {"T": 7, "B": 3, "S": 5, "E": 16, "H": 2, "KVH": 2, "D": 8, "V": 11, "P": 9, "N": 192, "K": 128}
LETTERS["L"] = most_entries(LETTERS["T"], LETTERS["B"], LETTERS["H"])
LETTERS["G"] = LETTERS["K"] // MOMENTS_GROUP
LETTERS["R"] = LETTERS["M"] = LETTERS["N"] // MOMENTS_GROUP
LETTERS["F"] = LETTERS["N"] // 2
LETTERS["W"], LETTERS["C"] = 40, 48
GROUP = (4, 6)  # the axes that "..." stands for
FIXED: dict[str, tuple[int, ...]] = {
    "num_heads": (LETTERS["H"],),
    "num_kv_heads": (LETTERS["KVH"],),
    "head_size": (LETTERS["D"],),
    "max_seq_len": (512,),
    "window_left": (64, -1),
    "window_right": (-1,),
    "bias_range": (LETTERS["R"],),
    "position_offset": (2,),
    "rotary_features": (0, LETTERS["C"]),
}

PLAIN_ATTENTION: dict[str, AttributeValue] = {
    "qkv_layout": "3HD",
    "has_qkv_bias": 0,
    "has_tasks": 0,
    "max_seq_len": 0,
    "window_left": -1,
    "window_right": -1,
    "bias": "none",
    "bias_range": 0,
    "has_k_position": 0,
    "has_q_position": 0,
    "quantized": 0,
    "y_scale": 1.0,
    "early_lengths": 0,
}
PLAIN_RESULTS: dict[str, AttributeValue] = {"results": "act", "y_scale": 1.0}
PLAIN_NORM: dict[str, AttributeValue] = {
    "epsilon": 1e-5,
    "rms": 0,
    "has_bias": 0,
    "has_residual": 0,
    "has_beta": 0,
    "has_sum": 0,
    "has_first": 0,
    "has_pooler": 0,
    "early_lengths": 0,
    **PLAIN_RESULTS,
}
PLAIN_POOL: dict[str, AttributeValue] = {
    "epsilon": 1e-5,
    "mode": "mean",
    "normalize": 0,
    "has_norm": 0,
    "has_beta": 0,
    "rms": 0,
    "results": "act",
    "early_lengths": 0,
}
PLAIN_EMBEDDING: dict[str, AttributeValue] = {
    "epsilon": 1e-5,
    "position_offset": 0,
    "has_token_types": 0,
    "has_positions": 0,
    "has_position_table": 0,
    "has_beta": 0,
    "schedules": 0,
    "has_tasks": 0,
    "num_heads": 1,
    "early_ids": 0,
    **PLAIN_RESULTS,
}
PLAIN_LINEAR: dict[str, AttributeValue] = {
    "activation": "none",
    "has_bias": 0,
    "has_residual": 0,
    "has_x_moments": 0,
    "has_residual_moments": 0,
    "has_moments": 0,
    "gated": 0,
    "rms": 0,
    "rotary_features": 0,
    "x_epsilon": 0.0,
    "residual_epsilon": 0.0,
}
PLAIN_LINEAR_FP8: dict[str, AttributeValue] = {
    **{name: value for name, value in PLAIN_LINEAR.items() if name != "has_bias"},
    **PLAIN_RESULTS,
}


def _values(spec: AttributeSpec) -> tuple[AttributeValue, ...]:
    if spec.allowed is not None:
        return spec.allowed
    return FIXED[spec.name] if spec.type == "int" else (0.125,)


def variants(operator: str) -> Iterator[dict[str, AttributeValue]]:
    """Every combination of the operator's flags and choices that it allows."""
    spec = OPERATORS[operator]
    names = [attribute.name for attribute in spec.attributes]
    for values in itertools.product(*(_values(attribute) for attribute in spec.attributes)):
        attributes = dict(zip(names, values, strict=True))
        if all(second.holds(attributes) for first, second in spec.requires if first.holds(attributes)):
            yield attributes


def all_variants() -> list[tuple[str, dict[str, AttributeValue]]]:
    return [(operator, attributes) for operator in OPERATORS for attributes in variants(operator)]


def concrete_shape(tensor: TensorSpec, letters: Mapping[str, int] = LETTERS) -> tuple[int, ...]:
    """The tensor's shape with numbers for the letters of its description."""
    shape: list[int] = []
    for axis in tensor.shape.strip("[]").split(","):
        if axis == "...":
            shape += GROUP
        elif axis:
            shape.append(_size(axis, letters))
    return tuple(shape)


def _size(axis: str, letters: Mapping[str, int]) -> int:
    total = 0
    for term in axis.split("+"):
        term, _, divisor = term.partition("/")
        product = 1
        for factor in term.split("*"):
            product *= int(factor) if factor.isdigit() else letters[factor]
        total += product // int(divisor or 1)
    return total
