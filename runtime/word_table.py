# SPDX-License-Identifier: Apache-2.0
"""libpadfree_text.so: plain texts are cut into words and looked up there, many at a time and without Python's lock."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import SessionError
from .gpu import plugin_library
from .rows import Int32Array, bounds_of

IdRow = tuple[Sequence[int], Sequence[int]]
"""Ids and types of a text's tokens."""

LIBRARY_NAME = "libpadfree_text.so"
NEW_WORD = -2
"""The count of a text with a word that the table does not have; see TextState in plugins/text/word_table.h."""
LEFT_OUT = -1
"""The count of a text that is not cut there."""


class _LookUpRequest(ctypes.Structure):
    """Request in plugins/text/frames.h."""

    _fields_ = (
        ("bytes", ctypes.c_char_p),
        ("sizes", ctypes.c_void_p),
        ("rows", ctypes.c_int32),
        ("segments", ctypes.c_int32),
        ("frame", ctypes.c_void_p),
        ("frame_sizes", ctypes.c_void_p),
        ("most_tokens", ctypes.c_int32),
        ("ids", ctypes.c_void_p),
        ("types", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class LookUpResult:
    """Tokens of texts, or pairs, one after the other.

    Attributes:
        ids: [T], of the rows that have a count.
        types: [T], 1 from the second text of a pair on.
        counts: [rows], tokens of each; negative where there are none here.
    """

    ids: Int32Array
    types: Int32Array
    counts: Int32Array

    @classmethod
    def of_rows(cls, rows: Sequence[IdRow | None]) -> LookUpResult:
        """The result from ids and types of every row; None for rows that were left out."""
        counts = np.array([LEFT_OUT if row is None else len(row[0]) for row in rows], np.int32)
        present = [row for row in rows if row is not None]
        total = sum(len(ids) for ids, _ in present)
        ids, types = (np.fromiter(chain.from_iterable(row[at] for row in present), np.int32, total) for at in (0, 1))
        return cls(ids, types, counts)

    @property
    def rows_left(self) -> list[int]:
        """The rows without tokens."""
        return np.flatnonzero(self.counts < 0).tolist() if self.counts.size and self.counts.min() < 0 else []

    def without(self, rows: npt.NDArray[np.bool_]) -> LookUpResult:
        """Without the tokens of some rows; `rows` is bool [rows]."""
        if not rows.any():
            return self
        stays = np.repeat(~rows, np.maximum(self.counts, 0))
        return LookUpResult(self.ids[stays], self.types[stays], np.where(rows, np.int32(LEFT_OUT), self.counts))

    def complete(self, rows: Sequence[IdRow]) -> LookUpResult:
        """The result with ids and types for the rows of `rows_left`, given in their order."""
        starts = bounds_of(np.maximum(self.counts, 0)).tolist()
        completions = dict(zip(self.rows_left, rows, strict=True))
        every = [
            completions.get(at) or (self.ids[start:stop], self.types[start:stop])
            for at, (start, stop) in enumerate(pairwise(starts))
        ]
        ids, types = (np.concatenate([np.asarray(row[at], np.int32) for row in every]) for at in (0, 1))
        return LookUpResult(ids, types, np.array([len(row[0]) for row in every], np.int32))


class WordTable:
    """Words and the ids of their pieces. Threads may share one.

    Args:
        library: from `open_library`.
        lowercase: whether texts are made lowercase before they are looked up.
        left_out: rows with one of these in a text are left out.
    """

    def __init__(self, library: ctypes.CDLL, *, lowercase: bool, left_out: Sequence[str]) -> None:
        self._library = library
        self._left_out = left_out
        self._handle = library.padfree_words_create(lowercase)
        if not self._handle:
            raise MemoryError("no memory for a table of words")
        weakref.finalize(self, library.padfree_words_destroy, self._handle)

    def add(self, word: str, ids: Sequence[int]) -> None:
        """Adds an ASCII word, in lowercase if texts are made lowercase."""
        values = (ctypes.c_int32 * len(ids))(*ids)
        _check(self._library.padfree_words_add(self._handle, word.encode("ascii"), len(word), values, len(ids)))

    def clear(self) -> None:
        """Forgets all words."""
        _check(self._library.padfree_words_clear(self._handle))

    def look_up(self, texts: Sequence[str], frame: Sequence[Sequence[int]], most: int | None) -> LookUpResult:
        """Tokens of rows of texts.

        Args:
            texts: any number of rows, each with as many texts as the frame has gaps.
            frame: ids before, between and after the texts of a row.
            most: tokens of a row: single texts lose their ends, pairs that are longer are left out.
        """
        segments = len(frame) - 1
        content, sizes = self._bytes(texts)
        flat = np.array([item for part in frame for item in part], np.int32)
        frame_sizes = np.array([len(part) for part in frame], np.int32)
        counts = np.empty(len(texts) // segments, np.int32)
        capacity = len(content) // 2 + flat.size * counts.size
        while True:
            ids, types = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
            request = _LookUpRequest(
                content,
                sizes.ctypes.data,
                counts.size,
                segments,
                flat.ctypes.data,
                frame_sizes.ctypes.data,
                -1 if most is None else most,
                ids.ctypes.data,
                types.ctypes.data,
                capacity,
                counts.ctypes.data,
            )
            count = _check(self._library.padfree_words_look_up(self._handle, ctypes.byref(request)))
            if count >= 0:
                return LookUpResult(ids[:count], types[:count], counts)
            capacity = -count

    def _bytes(self, texts: Sequence[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The texts with a byte between two of them, and their sizes, negative for those that are left out."""
        blob = "\0".join(texts)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        if not blob.isascii() or any(word in blob for word in self._left_out):
            fits = [text.isascii() and not any(word in text for word in self._left_out) for text in texts]
            blob = "\0".join(text if keep else "" for text, keep in zip(texts, fits, strict=True))
            sizes[~np.array(fits)] = -1
        return blob.encode("ascii"), sizes


def open_library() -> ctypes.CDLL | None:
    """The library; None where padfree was installed without it."""
    path = find()
    return None if path is None else _open(path)


def find() -> Path | None:
    """The library's path; None where there is none."""
    return next((folder / LIBRARY_NAME for folder in folders() if (folder / LIBRARY_NAME).is_file()), None)


def folders() -> list[Path]:
    """Where it is looked for: beside libpadfree.so, which PADFREE_LIBRARY may name, then where padfree is installed."""
    beside: list[Path] = []
    with suppress(SessionError):
        beside.append(plugin_library.find().parent)
    return [*dict.fromkeys([*beside, *plugin_library.library_folders()])]


@functools.cache
def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    functions: dict[str, tuple[Any, list[Any]]] = {
        "create": (pointer, [ctypes.c_int32]),
        "destroy": (None, [pointer]),
        "add": (int64, [pointer, ctypes.c_char_p, int64, pointer, int64]),
        "clear": (int64, [pointer]),
        "look_up": (int64, [pointer, pointer]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"padfree_words_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _check(result: int) -> int:
    if result == -(1 << 63):
        raise MemoryError("no memory for words of texts")
    return result
