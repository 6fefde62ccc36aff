# SPDX-License-Identifier: Apache-2.0
"""fp16 by arithmetic on whole arrays of bits: numpy converts number by number, which takes several times as long.

Rounding is to nearest, ties to even, as in numpy and on the GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import Floats
from .blocks import blocks

Halves = npt.NDArray[np.float16]
Words = npt.NDArray[np.uint32]

_SIGN, _NOT_SIGN = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_DROPPED_BITS = np.uint32(13)  # of a fraction of 23 bits
_HALF_STEP, _ONE = np.uint32((1 << 12) - 1), np.uint32(1)
_LEAST_NORMAL = np.uint32(0x38800000)  # 2^-14
_LEAST_INFINITE = np.uint32(0x477FF000)  # 65520, which rounds to 65536
_MAGIC = np.float32(0.5)  # sums with it have a last bit of 2^-24, the step of fp16's smallest numbers
_REBIAS = np.uint32((127 - 15) << 23)
_SCALE = np.float32(2.0**112)
_HALF_INFINITY = np.uint16(0x7C00)
_SHIFT = np.int32(13)
_SIGN_AND_SIZE = np.int32(~0x70001FFF)


def to_half(values: Floats) -> Halves:
    """An array rounded to fp16; infinite beyond the largest number."""
    result = np.empty(values.shape, np.float16)
    for part, exact in zip(blocks(result), blocks(values), strict=True):
        part[:] = _to_half(exact)
    return result


def to_float(values: npt.NDArray[Any]) -> Floats:
    """An array of any float type as float32; the array itself where it is that."""
    if values.dtype != np.float16:
        return np.asarray(values, np.float32)
    result = np.empty(values.shape, np.float32)
    for part, half in zip(blocks(result), blocks(values), strict=True):
        _to_float(half, part)
    return result


def _to_half(values: Floats) -> Halves:
    bits = np.ascontiguousarray(values).view(np.uint32)
    size = bits & _NOT_SIGN
    if size.size and size.max() >= _LEAST_INFINITE:
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float16)
    small = (size.view(np.float32) + _MAGIC).view(np.uint32)
    small -= _MAGIC.view(np.uint32)
    normal: Words = size >> _DROPPED_BITS
    normal &= _ONE
    normal += _HALF_STEP  # on top of the last bit that is kept, for ties
    normal += size
    normal -= _REBIAS
    normal >>= _DROPPED_BITS
    result: Words = np.where(size < _LEAST_NORMAL, small, normal)
    result |= (bits & _SIGN) >> np.uint32(16)
    return result.astype(np.uint16).view(np.float16)


def _to_float(values: Halves, result: Floats) -> None:
    """Both are flat."""
    bits = np.ascontiguousarray(values).view(np.uint16)
    if bits.size and (bits & np.uint16(0x7FFF)).max() >= _HALF_INFINITY:
        result[:] = values
        return
    wide = result.view(np.int32)
    wide[:] = bits.view(np.int16)  # the sign fills what is above it
    wide <<= _SHIFT
    wide &= _SIGN_AND_SIZE
    result *= _SCALE
