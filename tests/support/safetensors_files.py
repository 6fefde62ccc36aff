# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files of any type, for tests of code that reads them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

_NAMES: Mapping[Any, str] = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int64): "I64",
}


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Writes a file as the library safetensors does, with the header padded to 8 bytes."""
    header, begin = {}, 0
    for name, values in tensors.items():
        end = begin + values.nbytes
        header[name] = {"dtype": _NAMES[values.dtype], "shape": list(values.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))
    return path


def write_drawn(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: npt.DTypeLike, draw: Callable[[str, tuple[int, ...]], Any]
) -> Path:
    """Like write_tensors, but draws the tensors one by one, so that large files need little memory.

    Args:
        path: the file.
        shapes: those of the tensors, by name.
        dtype: the type in which all are written.
        draw: gives a tensor's numbers for its name and shape.
    """
    kind = np.dtype(dtype)
    header, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape) * kind.itemsize
        header[name] = {"dtype": _NAMES[kind], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            stream.write(np.ascontiguousarray(draw(name, shape), kind).view(np.uint8).data)
    return path
