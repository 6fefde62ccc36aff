# SPDX-License-Identifier: Apache-2.0
"""plugins/tokenizer through ctypes (text_tokenizer.cpp)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from .native_triton import ROOT, compile_library, together

MOST = 2**31 - 1
SMALL_TOKENIZER = {
    "format": 1,
    "vocabulary": {"[UNK]": 0, "a": 1, "##a": 2, "b": 3, "e": 4, "\u4e00": 5},
    "added": {"<x>": 50},
    "prefix": "##",
    "unknown": 0,
    "longest_word": 100,
    "single": {"ids": [[101], [102]], "types": [[0], [0]], "text_types": [0]},
    "pair": {"ids": [[101], [102], [102]], "types": [[0], [0], [1]], "text_types": [0, 1]},
    "characters": {
        "spaces": [32, 32],
        "marks": [33, 33],
        "dropped": [1, 8],
        "spaced": [0x4E00, 0x9FFF],
        "changed": {"A": "a", "\u00e9": "e"},
        "ranks": [0x302E, 2, 0x302F, 1],
    },
}
"""A tokenizer.json with the words of tests/support/backend/text_requests.cpp."""


def compile_tokenizers(compiler: str, folder: Path) -> ctypes.CDLL:
    """Compiles and opens the library."""
    sources = [
        *sorted((ROOT / "plugins" / "tokenizer").glob("*.cpp")),
        ROOT / "plugins" / "triton_batching" / "json.cpp",
        Path(__file__).with_name("text_tokenizer.cpp"),
    ]
    file = together(sources, folder / "tokenizers.cpp")
    library = ctypes.CDLL(str(compile_library(compiler, [file], folder / "tokenizers.so")))
    library.tokenizer_open.restype = ctypes.c_void_p
    library.tokenizer_encode.restype = ctypes.c_int64
    return library


class CompiledTokenizer:
    """A tokenizer from a file of `compile_tokenizer`.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, library: ctypes.CDLL, content: bytes) -> None:
        self._library = library
        reason = ctypes.create_string_buffer(200)
        self._handle = ctypes.c_void_p(library.tokenizer_open(content, ctypes.c_int64(len(content)), reason))
        if not self._handle:
            raise ValueError(reason.value.decode())

    def encode(
        self, first: bytes, second: bytes | None = None, *, most: int = MOST, left: bool = False
    ) -> tuple[list[int], list[int], int] | None:
        """Ids, types, and the number of ids of the whole text; None if the text is no valid UTF-8."""
        capacity = len(first) + len(second or b"") + 16
        ids, types, whole = np.empty(capacity, np.int32), np.empty(capacity, np.int32), ctypes.c_int64()
        arguments: list[Any] = [self._handle, first, ctypes.c_int64(len(first)), second]
        arguments += [ctypes.c_int64(-1 if second is None else len(second)), ctypes.c_int64(most), int(left)]
        arguments += [ctypes.c_void_p(ids.ctypes.data), ctypes.c_void_p(types.ctypes.data)]
        count = self._library.tokenizer_encode(*arguments, ctypes.c_int64(capacity), ctypes.byref(whole))
        assert count <= capacity
        return None if count < 0 else (ids[:count].tolist(), types[:count].tolist(), whole.value)

    def close(self) -> None:
        """Frees the tokenizer."""
        self._library.tokenizer_close(self._handle)
