# SPDX-License-Identifier: Apache-2.0
"""Where records of text files end, and what is in a record: lines of text and JSON, and CSV with quoted line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.data_files import CSV, JSON_LINES, TEXT
from padfree.contract.fields import decode

from ..errors import BulkError

Positions = npt.NDArray[np.int64]
LINE_END, QUOTE = 10, 34
BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
_JSON_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


class RecordError(ValueError):
    """One record that cannot be read; the message is the reason."""


class Ends:
    """Finds the ends of records, block by block.

    Args:
        quoted: line ends between double quotes belong to the record, as RFC 4180 has it for CSV. A quote inside of a
            quoted field is written twice, so that the number of quotes before a record's end is even.

    Attributes:
        open: whether the last block ended between quotes.
    """

    def __init__(self, *, quoted: bool) -> None:
        self._quoted = quoted
        self.open = False

    def count(self, block: bytes) -> int:
        """How many records end in the next block."""
        if not self._quoted or (not self.open and b'"' not in block):
            return block.count(b"\n")
        return self.positions(block).size

    def positions(self, block: bytes) -> Positions:
        """Where records end in the next block: int64 [records], the offsets of the bytes after them."""
        letters = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(letters == LINE_END)
        if self._quoted:
            quotes = np.flatnonzero(letters == QUOTE)
            before = np.searchsorted(quotes, ends) + int(self.open)
            ends = ends[before % 2 == 0]
            self.open ^= bool(quotes.size % 2)
        return ends + 1


def split(data: bytes, kind: str) -> list[bytes]:
    """The single records of data that ends with a whole one, without their line ends."""
    if kind == CSV and b'"' in data:
        ends = [0, *Ends(quoted=True).positions(data).tolist()]
        if ends[-1] < len(data):
            ends.append(len(data))
        lines = [data[start:end].removesuffix(b"\n") for start, end in pairwise(ends)]
    else:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
    return [record.removesuffix(b"\r") for record in lines]


def csv_fields(record: bytes) -> list[str]:
    """The fields of one record.

    Raises:
        RecordError: it is not UTF-8, or no CSV.
    """
    if len(record) > csv.field_size_limit():
        csv.field_size_limit(len(record))  # how large texts may be is checked elsewhere, with a message of its own
    try:
        rows = list(csv.reader(io.StringIO(decode_text(record), newline=""), strict=True))
    except csv.Error as error:
        raise RecordError(f"not CSV: {error}") from error
    if len(rows) > 1:
        raise RecordError("not CSV: a carriage return alone, where line feeds end lines")
    return rows[0] if rows else []


def csv_columns(first_record: bytes, shown_path: str) -> tuple[str, ...]:
    """The names in a file's first record.

    Raises:
        BulkError: there are none, or one comes twice.
    """
    try:
        names = csv_fields(first_record.removeprefix(BOM))
    except RecordError as error:
        raise BulkError(f"{shown_path}: the first line names no columns ({error}); write a header of names") from error
    if not any(names) or len(set(names)) < len(names):
        raise BulkError(f"{shown_path}: the first line names no columns, or one of them twice: {names[:8]}; correct it")
    return tuple(names)


def csv_header(beginning: bytes, shown_path: str) -> tuple[tuple[str, ...], int]:
    """The columns of a CSV file, and the byte where its rows begin, from the file's beginning.

    A file of no bytes has no columns: some writers leave such files where there are no rows.
    """
    if not beginning.removeprefix(BOM):
        return (), len(beginning)
    ends = Ends(quoted=True).positions(beginning)
    stop = int(ends[0]) if ends.size else len(beginning)
    return csv_columns(beginning[:stop].rstrip(b"\r\n"), shown_path), stop


def decode_text(value: bytes) -> str:
    """A text from its bytes.

    Raises:
        RecordError: it is not UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8: byte {value[error.start]:#04x} at {error.start}") from error


Reader = Callable[[bytes], Mapping[str, Any]]


def reader_of(kind: str, columns: Sequence[str]) -> Reader:
    """A function that reads the values of a record, by column name; it raises RecordError if there are none.

    `columns`: those of a CSV file's header, or the one column of a text file, which has the lines.
    """
    if kind == TEXT:
        (line,) = columns
        return lambda record: {line: record}
    if kind == JSON_LINES:
        return _json_object

    def fields(record: bytes) -> Mapping[str, Any]:
        values = csv_fields(record)
        if len(values) != len(columns):
            raise RecordError(f"fields: {len(values)}, the header has {len(columns)}")
        return dict(zip(columns, values, strict=True))

    return fields


def json_kind(value: Any) -> str:
    """What a value is in JSON's words, for messages."""
    return _JSON_KINDS.get(type(value), "null")


def _json_object(record: bytes) -> Mapping[str, Any]:
    if not record.strip():
        raise RecordError("empty line: no object in it")
    try:
        value = decode(decode_text(record))
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"not an object: {json_kind(value)}")
    return value


def blocks(stream: Any, at: int, size: int, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """A part of a file, block by block."""
    stream.seek(at)
    while size > 0 and (block := bytes(stream.read(min(size, block_bytes)))):
        size -= len(block)
        yield block


def whole_records(parts: Iterable[bytes], kind: str) -> Iterator[tuple[bytes, int]]:
    """The same bytes in other parts, which end where records end, and how many records each part has."""
    ends, rest = Ends(quoted=kind == CSV), []
    for block in parts:
        positions = ends.positions(block)
        if not positions.size:
            rest.append(block)
            continue
        stop = int(positions[-1])
        yield b"".join([*rest, block[:stop]]), positions.size
        rest = [block[stop:]]
    last = b"".join(rest)
    if last:
        yield last, 1
