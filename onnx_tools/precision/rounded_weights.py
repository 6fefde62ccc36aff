# SPDX-License-Identifier: Apache-2.0
"""Weights in half precision, and the check that they are the rounded originals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from ..errors import VerificationError
from ..files import DeferredData, Floats, Model, array_of, of_bfloat16
from ..operators import ACT_TYPES
from .bfloat16 import unequal_in_fp16
from .blocks import blocks, finite_of, largest_of, on_all_cores, pieces
from .halves import to_float, to_half
from .ranges import LARGEST

Pair: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]

_ROUNDS = 2
_FEW_PIECES = 16
"""Tensors of so many pieces are checked by one thread each: there are many of them."""
_ROUNDOFF: Mapping[str, float] = MappingProxyType({"fp16": 2.0**-11, "bf16": 2.0**-8})
_SMALLEST: Mapping[str, float] = MappingProxyType({"fp16": 2.0**-25, "bf16": 2.0**-134})  # half of the smallest step


def round_to(values: Floats, precision: str) -> TensorProto:
    """A nameless tensor with the values rounded to nearest, ties to even; infinite beyond the largest number."""
    content = round_values(values, precision).tobytes()
    return TensorProto(data_type=ACT_TYPES[precision], dims=values.shape, raw_data=content)


def round_values(values: Floats, precision: str) -> npt.NDArray[Any]:
    """The values of `round_to` as an array; for bf16, their bits."""
    if precision == "fp16":
        return to_half(values)
    bits = np.ascontiguousarray(values).view(np.uint32)
    result: npt.NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2")
    result[np.isnan(values)] = 0x7FC0
    return result.reshape(values.shape)  # a scalar had become 1-D


def moved_to_keep_sums(exact: Floats, rounding: Callable[[Floats], Floats], axis: int) -> Floats:
    """Numbers whose sums along an axis are those of `exact` after `rounding`, but for a few rounding errors.

    Where rows have a mean other than 0, a GEMM's result is off by that mean times the sum of K rounding errors of
    random signs. So all numbers move by the same small fraction of themselves, which makes some of them round to their
    other neighbour: three tenths of the sum of errors are left at K = 384, one tenth at 4096, and no number's error
    grows by more than that fraction.
    """
    sizes = np.abs(exact)
    total = sizes.sum(axis=axis, keepdims=True, dtype=np.float64)
    total[total == 0] = 1.0
    candidate = exact
    for _ in range(_ROUNDS):
        off = (rounding(candidate) - exact).sum(axis=axis, keepdims=True, dtype=np.float64)
        candidate = candidate - sizes * (off / total).astype(np.float32)
    return candidate


def to_float32(tensor: TensorProto) -> Floats:
    """The values of a float tensor of any precision. They may share the tensor's memory: do not write to them."""
    return to_float(array_of(tensor))


def survives(values: Floats, precision: str) -> bool:
    """Whether a constant can be rounded: nothing overflows, and a single number keeps its value but for rounding."""
    if largest_of(values) > LARGEST[precision]:
        return False
    if values.size > 1:
        return True
    finite = finite_of(values)
    rounded = to_float32(round_to(finite, precision))
    return bool(np.all(np.abs(rounded - finite) <= np.abs(finite) * _ROUNDOFF[precision]))


def check_weights(original: Model, converted: Model, precision: str) -> None:
    """Checks that each converted weight is the original's, rounded. Raises VerificationError naming one that is not."""
    sources = {tensor.name: tensor for tensor in original.proto.graph.initializer}

    def differing(tensor: TensorProto) -> int:
        source = sources.get(tensor.name) or sources.get(tensor.name.removesuffix(f".{precision}"))
        if source is None or tensor.data_type == source.data_type:
            return 0
        data = original.weights.held_for(source)
        narrow: Mapping[int, DeferredData] = data.narrow if isinstance(data, DeferredData) else {}
        if tensor.data_type in narrow and narrow[tensor.data_type] is converted.weights.held_for(tensor):
            return 0  # it is read from the file as it is
        if TensorProto.BFLOAT16 in narrow and precision == "fp16":
            bits = np.frombuffer(narrow[TensorProto.BFLOAT16].data(), np.uint16)
            pairs = zip(pieces(bits), pieces(converted.array(tensor)), strict=True)
            return count_far(_far_from_bits, list(pairs))
        pairs = zip(pieces(original.array(source)), pieces(converted.array(tensor)), strict=True)
        return count_far(far_in, list(pairs))

    def count_far(function: Callable[[Pair], int], pairs: Sequence[Pair]) -> int:
        return sum(on_all_cores(function, pairs) if len(pairs) > _FEW_PIECES else map(function, pairs))

    def far_in(pair: Pair) -> int:
        return sum(_far(to_float(a), to_float(b), precision) for a, b in zip(*map(blocks, pair), strict=True))

    tensors = list(converted.proto.graph.initializer)
    for tensor, far in zip(tensors, on_all_cores(differing, tensors), strict=True):
        if far:
            raise VerificationError(
                f"weight '{tensor.name}' is not the original rounded to {precision} ({far} of {math.prod(tensor.dims)} "
                f"values differ); this is a defect of padfree's conversion: please report it, or choose precision fp32"
            )


def _far_from_bits(pair: Pair) -> int:
    """As `_far`, for numbers in bfloat16 and what they are in fp16: those that are the same number are not far."""
    bits, halves = pair
    others = unequal_in_fp16(bits, halves)
    return _far(of_bfloat16(bits[others]), to_float(halves[others]), "fp16") if others.size else 0


def _far(expected: Floats, actual: Floats, precision: str) -> int:
    """How many numbers are further from the expected ones than rounding takes them."""
    finite = np.isfinite(expected)
    if finite.all():
        tolerance = np.abs(expected) * _ROUNDOFF[precision] + _SMALLEST[precision]
        return int((~(np.abs(actual - expected) <= tolerance)).sum())
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return int((~equal[~finite]).sum()) + _far(expected[finite], actual[finite], precision)
