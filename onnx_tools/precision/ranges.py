# SPDX-License-Identifier: Apache-2.0
"""Finds what half precision cannot hold: weights and activations that overflow, or that vanish, with sample data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto

from ..files import Array, Model, of_bfloat16, open_session
from ..operators import with_functions
from .bfloat16 import Bits, is_finite_in_fp16, largest_number
from .blocks import blocks, finite_of, largest_of
from .element_types import infer_element_types
from .halves import Halves, to_float, to_half

Feeds = Mapping[str, Array]

LARGEST: Mapping[str, float] = MappingProxyType({"fp16": 65504.0, "bf16": 3.3895314e38})
# Sample data are a few tokens with random ids; real data may give numbers a few times larger.
HEADROOM = 4.0
# Rounding to 11 bits costs about 2^-13 of a tensor's norm. Numbers near or below the smallest ones lose more; eight
# times as much is too much.
FP16_LOSS = 2.0**-10
_SURE_MEAN_SQUARE = 2.0**-29


def unfit_reason(values: Array, precision: str, *, headroom: float = 1.0, rounded: Array | None = None) -> str:
    """Why a tensor does not fit a half precision type; empty where it does.

    Args:
        values: the tensor in fp32.
        precision: "fp16" or "bf16"; bf16 has the range of fp32, and everything fits.
        headroom: how much larger the numbers may become.
        rounded: the values in that type, where they have been rounded already.
    """
    if precision != "fp16" or not values.size:
        return ""
    peak = largest_of(values)
    if peak * headroom > LARGEST[precision]:
        return f"holds {peak:.3g}, {precision} holds at most {LARGEST[precision]:g}"
    if _surely_fits(values):
        return ""
    squares = lost_squares = 0.0
    for part, half in zip(blocks(values), blocks(to_half(values) if rounded is None else rounded), strict=True):
        exact = finite_of(part).astype(np.float64)
        squares += float(exact @ exact)
        exact -= to_float(half if exact.size == part.size else half[np.isfinite(part)])
        lost_squares += float(exact @ exact)
    if lost_squares > FP16_LOSS**2 * squares:
        loss = math.sqrt(lost_squares / squares)
        return f"holds numbers up to {peak:.3g}, of which {precision} loses {100 * loss:.2g} %"
    return ""


def unfit_reason_of_bits(bits: Bits, halves: Halves, count: int) -> str:
    """The same for fp16 and numbers in bfloat16.

    All but `count` of them are the same number in fp16. The others, below 2^-14, are off by 2^-25 at most. So the
    largest number alone shows in most tensors that fp16 loses little.

    Args:
        bits: the tensor's numbers in bfloat16.
        halves: these in fp16.
        count: how many of them fp16 may not have as they are.
    """
    if is_finite_in_fp16(bits) and 2 * count * 2.0**-50 <= (FP16_LOSS * largest_number(bits)) ** 2:
        return ""
    return unfit_reason(of_bfloat16(bits), "fp16", rounded=halves)


def surely_fits(values: Array, precision: str) -> bool:
    """Whether part of a tensor shows that unfit_reason is empty for all of it, if the other parts show it, too.

    Rounding then makes nothing infinite, either. `values`: the part, in fp32.
    """
    if not values.size:
        return True
    peak = float(np.abs(values).max())  # NaN where there is one
    return peak <= LARGEST[precision] and (precision != "fp16" or _surely_fits(values))


def _surely_fits(values: Array) -> bool:
    """Whether the mean square of the numbers alone proves that fp16 loses little.

    Rounding changes a number by 2^-11 of it at most, or by 2^-25 where that is more. For n numbers whose squares add up
    to s, the squared errors add up to at most 2^-22 s + 2^-50 n, which FP16_LOSS allows from s = 2^-30 n / 0.75 on. The
    sum s is computed here to a few digits.
    """
    total = sum(float(part @ part) for part in blocks(values))
    return bool(np.isfinite(total) and total >= _SURE_MEAN_SQUARE * values.size)


@dataclass(frozen=True)
class SampleRun:
    """A rewritten fp32 model's run on sample inputs.

    Attributes:
        unfit: activations that a half precision type cannot hold, with the reason for each.
        results: the outputs by name, but for those that are inputs or constants.
    """

    unfit: Mapping[str, str]
    results: Mapping[str, Array]


def find_unfit(model: Model, feeds: Feeds, precision: str) -> SampleRun:
    """Runs a model on sample inputs, and finds the activations that do not fit.

    Args:
        model: without function bodies.
        feeds: sample inputs.
        precision: see unfit_reason.
    """
    nodes, types = model.proto.graph.node, infer_element_types(model.proto, "fp32")
    all_names = dict.fromkeys(name for node in nodes for name in node.output if name)
    floats = [name for name in all_names if types[name] == TensorProto.FLOAT]
    outputs_marked = with_functions(model.proto)
    outputs = [value.name for value in outputs_marked.graph.output if value.name in all_names]
    outputs_marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in floats if name not in outputs)
    names = [*dict.fromkeys((*floats, *outputs))]
    arrays = dict(zip(names, run(model.with_proto(outputs_marked), feeds, names), strict=True))
    reasons = {name: unfit_reason(arrays[name], precision, headroom=HEADROOM) for name in floats}
    return SampleRun(
        {name: reason for name, reason in reasons.items() if reason}, {name: arrays[name] for name in outputs}
    )


def run(model: Model, feeds: Feeds, names: Sequence[str]) -> list[Array]:
    """Tensors of a model in onnxruntime on the CPU, which does not optimise the graph: each is computed as it says."""
    return list(open_session(model, optimize=False).run(list(names), dict(feeds)))
