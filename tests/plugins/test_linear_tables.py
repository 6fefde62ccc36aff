# SPDX-License-Identifier: Apache-2.0
"""Tables of choices that go into the library and come out again, across several builds."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

DEVICE = 7
"""A device for which no other test has tables."""
KIND = "768 3072 1 1 0 1 0 0 0 0 1 1 8192"
CHOICES = [80 | 2 << 16 | 2 << 20 | 1 << 24, 224 | 2 << 16 | 1 << 20 | 1 << 24, 0]
"""80 tokens in clusters of 2 x 2, 224 tokens in clusters of 2 x 1, and the kernel's own choice."""
MMA_CHOICES = [1 << 28 | 16 | 1 << 16 | 4 << 20 | 4 << 24, 1 << 28 | 128 | 4 << 16 | 1 << 20 | 1 << 24]
"""Without Hopper: tiles of 16 x 64, whose stages of 256 bytes are four warps' work, and of 128 x 256."""
SHARED = [MMA_CHOICES[0] | (parts - 1) << 8 for parts in (3, 8, 9)]
"""The first of them where as many blocks share each; 9 are too many."""
TAIL = 1 << 28 | 128 | 15 << 8 | 2 << 16 | 1 << 20 | 2 << 24
"""Tiles of 128 x 128, where blocks share those that are left over of whole waves."""


@pytest.fixture(scope="module")
def tables(library_path: Path) -> Any:
    library = ctypes.CDLL(str(library_path))
    library.padfreeLinearTables.restype = ctypes.c_int64
    library.padfreeLinearTables.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
    library.padfreeTakeLinearTables.argtypes = [ctypes.c_int32, ctypes.c_char_p]
    return library


def text_of(tables: Any, device: int) -> str:
    size = tables.padfreeLinearTables(device, None, 0)
    buffer = ctypes.create_string_buffer(size)
    assert tables.padfreeLinearTables(device, buffer, size - 1) == size
    assert buffer.raw == bytes(size)  # too small: untouched
    assert tables.padfreeLinearTables(device, buffer, size) == size
    return buffer.value.decode()


def test_what_goes_in_comes_out(tables: Any) -> None:
    first = f"{KIND} 1200 {CHOICES[0]} 4928 {CHOICES[1]} 8192 {CHOICES[2]}\n"
    assert tables.padfreeTakeLinearTables(DEVICE, first.encode()) == 1
    assert text_of(tables, DEVICE) == first
    assert text_of(tables, DEVICE + 1) == ""
    other = f"{KIND.replace('3072', '768')} 8192 {CHOICES[1]}\n"
    assert tables.padfreeTakeLinearTables(DEVICE, other.encode()) == 1
    assert text_of(tables, DEVICE) == other + first
    changed = f"{KIND} 8192 {CHOICES[1]}\n"  # what was already known stays
    assert tables.padfreeTakeLinearTables(DEVICE, changed.encode()) == 1
    assert text_of(tables, DEVICE) == other + first


def test_tiles_of_other_gpus_are_kept_too(tables: Any) -> None:
    text = f"{KIND} 16 {SHARED[0]} 48 {SHARED[1]} 64 {MMA_CHOICES[0]} 1403 {TAIL} 8192 {MMA_CHOICES[1]}\n"
    assert tables.padfreeTakeLinearTables(DEVICE + 3, text.encode()) == 1
    assert text_of(tables, DEVICE + 3) == text


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        KIND,
        f"{KIND} 8192",
        f"{KIND} 4096 {CHOICES[0]}",  # ends below the largest number of tokens
        f"{KIND} 4096 {CHOICES[0]} 4096 {CHOICES[1]} 8192 0",
        f"{KIND} 0 {CHOICES[0]} 8192 0",
        f"{KIND} 8192 {17 | 1 << 16 | 1 << 20 | 1 << 24}",  # 17 tokens
        f"{KIND} 8192 {16 | 4 << 16 | 1 << 20 | 1 << 24}",  # each block fetches only 4 tokens
        f"{KIND} 8192 {64 | 4 << 16 | 4 << 20 | 1 << 24}",  # 16 blocks
        f"{KIND} 8192 {MMA_CHOICES[0] | 1}",  # 17 tokens, on mma.sync
        f"{KIND} 8192 {SHARED[2]}",
        f"{KIND} 8192 {CHOICES[0]} x",
        f"{KIND} 8192 99999999999",
    ],
)
def test_what_is_no_table_is_refused_as_a_whole(tables: Any, line: str) -> None:
    device = DEVICE + 2
    good = f"{KIND} 8192 {CHOICES[0]}\n"
    assert tables.padfreeTakeLinearTables(device, (good + line + "\n").encode()) == 0
    assert text_of(tables, device) == ""
