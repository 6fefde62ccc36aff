# SPDX-License-Identifier: Apache-2.0
"""Weights in safetensors files: what is in them, and single tensors; nothing in such a file is code."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.file_kinds import LINK_BYTES, refuse_link
from padfree.onnx_tools.files import Floats

from ..errors import BuildError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TYPES: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MOST_HEADER_BYTES = 100_000_000  # as the library allows
_HEAD = struct.Struct("<Q")


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in a file: its type, its shape, and the bytes from `begin` to `end`."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of a file by name.

    Raises:
        BuildError: it is no safetensors file, or its end is missing.
    """
    damage = BuildError(f"{file}: not a whole safetensors file; download the model again")
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            refuse_link(stream.read(LINK_BYTES), file, BuildError)
            stream.seek(0)
            (length,) = _HEAD.unpack(stream.read(_HEAD.size))
            if length > min(_MOST_HEADER_BYTES, size):
                raise damage
            raw = json.loads(stream.read(length))
            start = _HEAD.size + length
            entries = {name: _entry(item, start) for name, item in raw.items() if name != "__metadata__"}
    except OSError as error:
        raise BuildError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, struct.error, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damage from error
    if any(not start <= entry.begin <= entry.end <= size for entry in entries.values()):
        raise damage
    return entries


def _entry(item: Any, start: int) -> Entry:
    begin, end = item["data_offsets"]
    return Entry(str(item["dtype"]), tuple(int(size) for size in item["shape"]), start + int(begin), start + int(end))


def read_tensor(file: Path, name: str) -> Floats:
    """One tensor as float32.

    Raises:
        BuildError: the file has no such tensor, or one of another type than floating-point numbers.
    """
    entries = read_header(file)
    if name not in entries or entries[name].dtype not in _TYPES:
        raise BuildError(f"{file}: has no floating-point tensor '{name}', only {', '.join(entries)}; download it again")
    entry = entries[name]
    with file.open("rb") as stream:
        stream.seek(entry.begin)
        values = np.frombuffer(stream.read(entry.end - entry.begin), _TYPES[entry.dtype])
    if values.size != np.prod(entry.shape, dtype=np.int64):
        raise BuildError(
            f"{file}: '{name}' has {values.size} numbers, its shape is {list(entry.shape)}; download it again"
        )
    if entry.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32).reshape(entry.shape)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model itself: one, or the parts that an index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    return sorted(folder.glob("model-*-of-*.safetensors")) if (folder / INDEX).is_file() else []


def pickled_files(folder: Path) -> list[str]:
    """Names of files with weights that are pickled: loading one may run code."""
    return sorted(path.name for pattern in PICKLES for path in folder.glob(pattern) if path.name != "training_args.bin")
