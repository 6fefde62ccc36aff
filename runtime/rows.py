# SPDX-License-Identifier: Apache-2.0
"""One token input of a request, as callers give it: arrays or lists of integers, or of embeddings, one per sequence."""

from __future__ import annotations

import struct
from array import array as packed_array
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import InputInfo

from .errors import SessionError

Array = npt.NDArray[Any]
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[Any]
"""int32, or float32 of embeddings; of callers any integers, or any floats."""

INT32_MAX = 2**31 - 1
_NOTHING = np.zeros(0, dtype=np.int32)
_INTEGERS = ("integers", "iu", "token ids, int32 or int64")


class Column(NamedTuple):
    """A token input's values of all sequences.

    Attributes:
        lengths: tokens of every sequence.
        packed: int32 [T]; None where `rows` are still to be packed.
        rows: arrays of any type of integers, or of floats, one per sequence.
    """

    lengths: list[int]
    packed: Int32Array | None
    rows: list[TokenArray]

    def pack(self, item: InputInfo) -> TokenArray:
        """All values, one sequence after the other: [T], or [T, N] where a token has N numbers.

        Raises:
            SessionError: a value needs more than 32 bits.
        """
        if self.packed is not None:
            return self.packed
        if not self.rows:
            return no_tokens(item, 0)
        return as_tokens(np.concatenate(self.rows), item)


def read_column(item: InputInfo, column: Any) -> Column:
    """Checks types and shapes of one token input's sequences.

    Raises:
        SessionError: not one array or list of integers per sequence, or another number of numbers for a token.
    """
    if item.width is None and type(column) is list:
        packed = pack_lists(column)
        if packed is not None:
            return packed
    rows = _rows(item, column)
    return Column(list(map(len, rows)), None, rows)


def check_same_lengths(name: str, column: Column, ids_name: str, lengths: list[int]) -> None:
    """Raises SessionError unless an input has a value for every token of the ids."""
    if column.lengths == lengths:
        return
    if len(column.lengths) != len(lengths):
        raise SessionError(
            f"'{name}' has {len(column.lengths)} sequences, '{ids_name}' has {len(lengths)}; pass one array for every "
            "sequence"
        )
    at = next(at for at, length in enumerate(lengths) if column.lengths[at] != length)
    raise SessionError(
        f"'{name}', sequence {at}: {column.lengths[at]} values, '{ids_name}' has {lengths[at]}; pass one value for "
        "every token"
    )


def ranges(starts: npt.ArrayLike, lengths: npt.ArrayLike) -> IntArray:
    """The numbers from each start on, as many as its length says, one range after the other."""
    counts = np.asarray(lengths, np.int64)
    return np.repeat(np.asarray(starts, np.int64) - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def bounds_of(seq_lens: npt.ArrayLike) -> IntArray:
    """Where each sequence begins in packed tokens, and where the last one ends: int64 [B+1]."""
    lens = np.asarray(seq_lens, np.int64)
    bounds = np.zeros(lens.size + 1, np.int64)
    np.cumsum(lens, out=bounds[1:])
    return bounds


def no_tokens(item: InputInfo, count: int) -> TokenArray:
    """Zeros for so many tokens, as an input takes them."""
    return np.zeros((count, *item.trailing_shape), dtype=np.float32 if item.holds_embeddings else np.int32)


def as_tokens(value: Any, item: InputInfo) -> TokenArray:
    """Packed values of a token input: int32 [T] or [T, N], or float32 [T, N] of embeddings.

    Raises:
        SessionError: of another type or shape, or beyond 32 bits.
    """
    if not item.holds_embeddings:
        return as_int32(value, item.name, item.width)
    kinds = ("f", "floats; pass embeddings as float32 arrays")
    return np.ascontiguousarray(
        _packed_column(value, item.name, item.width, kinds, f"rows of {item.width}"), dtype=np.float32
    )


def as_int32(value: Any, name: str, width: int | None = None) -> Int32Array:
    """An integer array [T] as int32, or [T, width] where there is a width.

    Raises:
        SessionError: not integers, of another shape, or beyond 32 bits.
    """
    array = _packed_column(
        value, name, width, ("iu", "integers; pass int32 or int64 arrays"), "a flat list of integers"
    )
    if array.dtype != np.int32 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -INT32_MAX - 1 or high > INT32_MAX:
            raise SessionError(f"'{name}' holds {low if low < 0 else high}, allowed: 32-bit integers; check the ids")
    return np.ascontiguousarray(array, dtype=np.int32)


def _packed_column(
    value: Any, name: str, width: int | None, kinds: tuple[str, str], expectation: str
) -> npt.NDArray[Any]:
    """An array [T], or [T, width] if there is a width, of numbers of some kinds; `expectation` is for messages."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SessionError(f"'{name}': cannot become an array ({error}); pass {expectation}") from error
    if array.size == 0 and array.ndim == 1:
        return array if width is None else array.reshape(0, width)
    if array.dtype.kind not in kinds[0]:
        raise SessionError(f"'{name}' has type {array.dtype}, allowed: {kinds[1]}")
    if width is not None and array.shape[1:] != (width,):
        raise SessionError(f"'{name}' has shape {list(array.shape)}, allowed: [tokens, {width}]; pass rows of {width}")
    if width is None and array.ndim != 1:
        raise SessionError(f"'{name}' has shape {list(array.shape)}, allowed: one dimension; pass one row per sequence")
    return array


def pack_lists(rows: list[Any]) -> Column | None:
    """Lists of integers as int32 [T]: one pass over the values, which takes a third of the time of one array per list.

    None if there is anything else: then every row is checked by itself, and an error names the wrong one.
    """
    # Truth values are integers to `struct`, and none to NumPy where a list has nothing else.
    if len(rows) == 1:  # single requests are asked for most often, and this is most of their time
        row = rows[0]
        if type(row) is not list or (row and type(row[0]) is bool):
            return None
        try:
            values = packed_array("i", row)
        except (TypeError, OverflowError, IndexError):  # the last where another thread changes the list
            return None
        return Column([len(values)], np.frombuffer(values, dtype=np.int32) if values else _NOTHING, [])
    if set(map(type, rows)) != {list} or bool in {type(row[0]) for row in rows if row}:
        return None
    lengths = list(map(len, rows))
    total = sum(lengths)
    packed = bytearray(4 * total)
    try:
        struct.pack_into(f"={total}i", packed, 0, *chain.from_iterable(rows))
    except struct.error:  # also where another thread changes the lists
        return None
    return Column(lengths, np.frombuffer(packed, dtype=np.int32), [])


def _rows(item: InputInfo, column: Any) -> list[TokenArray]:
    name = item.name
    if isinstance(column, np.ndarray) and (not column.ndim or (column.ndim == 1 and column.dtype != object)):
        raise SessionError(
            f"'{name}' is one array of shape {list(column.shape)}; pass a list with one array per sequence, or use "
            "run_packed for tokens that are packed already"
        )
    if isinstance(column, (str, bytes)) or not isinstance(column, (Sequence, np.ndarray)):
        raise SessionError(f"'{name}' is a {type(column).__name__}; pass a list with one array of ids per sequence")
    return [_row(item, at, row) for at, row in enumerate(column)]


def _row(item: InputInfo, at: int, row: Any) -> TokenArray:
    name, width = item.name, item.width
    kind, kinds, example = ("floats", "f", "embeddings, float32") if item.holds_embeddings else _INTEGERS
    try:
        array = np.asarray(row)
    except ValueError as error:
        raise SessionError(f"'{name}', sequence {at}: not a flat list of {kind} ({error})") from error
    if array.ndim == 1 and array.size == 0:
        return no_tokens(item, 0)
    if array.dtype.kind not in kinds:
        raise SessionError(f"'{name}', sequence {at}: type {array.dtype}, allowed: {kind}; pass {example}")
    if width is not None and array.shape[1:] != (width,):
        raise SessionError(
            f"'{name}', sequence {at}: shape {list(array.shape)}, allowed: [length, {width}]; pass {width} numbers for "
            "every token"
        )
    if width is None and array.ndim != 1:
        raise SessionError(
            f"'{name}', sequence {at}: shape {list(array.shape)}, allowed: one dimension; pass one array of ids a "
            "sequence"
        )
    return array
