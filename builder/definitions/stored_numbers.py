# SPDX-License-Identifier: Apache-2.0
"""Numbers as safetensors files have them: read into memory, transposed, and made float32."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from io import RawIOBase
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.onnx_tools.files import Floats, of_bfloat16

Numbers = npt.NDArray[np.generic]
"""Numbers in a file's own type; of bfloat16 the bits."""
TYPES: Mapping[str, np.dtype[np.generic]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # the upper half of a float32
}
MOST_SCRATCH_BYTES = 1 << 25
_ROWS_AT_ONCE = 64
_OF_THREAD = threading.local()


def scratch(count: int, dtype: np.dtype[np.generic]) -> Numbers:
    """Memory of this thread for so many numbers, until it asks again."""
    size = count * dtype.itemsize
    if getattr(_OF_THREAD, "memory", np.empty(0, np.uint8)).size < size:
        _OF_THREAD.memory = np.empty(size, np.uint8)
    memory: npt.NDArray[np.uint8] = _OF_THREAD.memory
    return memory[:size].view(dtype)


def is_scratch(values: npt.NDArray[Any]) -> bool:
    """Whether an array lies in this thread's memory of `scratch`."""
    memory = getattr(_OF_THREAD, "memory", None)
    return memory is not None and np.may_share_memory(values, memory)


def fill(stream: RawIOBase, content: npt.NDArray[np.uint8]) -> bool:
    """Fills memory from where a file stands; whether there was enough."""
    done = 0
    while done < content.size and (byte_count := stream.readinto(content[done:].data)):
        done += byte_count
    return done == content.size


def widen(raw: Numbers, dtype: str) -> Floats:
    """Numbers of one of safetensors' types in float32, one row after the other; those of F32 need not be a copy."""
    return np.ascontiguousarray(raw, np.float32) if dtype != "BF16" else of_bfloat16(raw)


def transpose(raw: Numbers) -> Numbers:
    """[N, M] of [M, N]: a copy.

    Rows are transposed a few at a time, which stay in the processor's cache. With all at once, the next number of every
    row of the result lies in another line of memory, which takes two to four times as long.
    """
    result = np.empty(raw.shape[::-1], raw.dtype)
    for begin in range(0, len(raw), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        result[:, rows] = raw[rows].T
    return result
