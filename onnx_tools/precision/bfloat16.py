# SPDX-License-Identifier: Apache-2.0
"""fp16 from the bits of bfloat16, as files hold them, without float32 in between.

Between 2^-14 and 65504, fp16 has every number that bfloat16 has: the same bits, with another bias and three places
further up. That is nearly all of a model's weights. Other numbers go through float32, as in halves.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..files import of_bfloat16
from .halves import Halves, to_half

Bits = npt.NDArray[np.uint16]

_SIGN, _NOT_SIGN = np.uint16(0x8000), np.uint16(0x7FFF)
_REBIAS = np.uint16((127 - 15) << 7)
_SHIFT = np.uint16(3)
_DROPPED_BITS = np.uint16((1 << 3) - 1)
_FIRST = np.uint16((127 - 14) << 7)  # 2^-14
_COUNT = np.uint16(30 << 7)  # of the numbers that both types have, of one sign
_LARGEST = np.uint16(0x477F)  # 65280


def is_finite_in_fp16(bits: Bits) -> bool:
    """Whether no number lies beyond fp16's largest."""
    return bool((bits & _NOT_SIGN).max(initial=0) <= _LARGEST)


def largest_number(bits: Bits) -> float:
    """The largest absolute value; not for infinities and NaN."""
    return float(of_bfloat16((bits & _NOT_SIGN).max(initial=0, keepdims=True)).reshape(()))


def to_half_from_bits(bits: Bits) -> tuple[Halves, int]:
    """The numbers rounded to fp16, infinite beyond the largest, and how many fp16 may not have as they are."""
    flat = np.ravel(bits)
    size = flat & _NOT_SIGN
    result = size - _REBIAS
    result <<= _SHIFT
    result |= flat & _SIGN
    size -= _FIRST  # what is below wraps round
    others = size >= _COUNT
    count = int(np.count_nonzero(others))
    if count:
        indices = np.flatnonzero(others)
        result[indices] = to_half(of_bfloat16(flat[indices])).view(np.uint16)
    return result.view(np.float16).reshape(bits.shape), count


def unequal_in_fp16(bits: Bits, halves: Halves) -> npt.NDArray[np.int64]:
    """The indices of all numbers, but of those in both types that are the same number in fp16. Both are flat."""
    words = halves.view(np.uint16)
    back = words & _NOT_SIGN
    back >>= _SHIFT
    back += _REBIAS
    back |= words & _SIGN
    is_unequal = back != bits
    is_unequal |= (words & _DROPPED_BITS) != 0
    size = bits & _NOT_SIGN
    size -= _FIRST
    is_unequal |= size >= _COUNT
    return np.flatnonzero(is_unequal)
