# SPDX-License-Identifier: Apache-2.0
"""Parquet files whose columns are compared with the manifest's digests as they are read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BulkError

BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Range:
    """Bytes of a file: a column of a row group."""

    start: int
    stop: int


def column_ranges(metadata: Any, group: int, names: Sequence[str]) -> list[Range]:
    """Where the columns of a row group lie, in the order of the names.

    Args:
        metadata: pyarrow's FileMetaData.
        group: number of the row group.
        names: of columns of the schema.
    """
    row_group = metadata.row_group(group)
    columns = [row_group.column(at) for at in range(row_group.num_columns)]
    ranges = []
    for name in names:
        for column in columns:
            if column.path_in_schema == name or column.path_in_schema.startswith(f"{name}."):
                first = column.data_page_offset
                if column.has_dictionary_page and column.dictionary_page_offset is not None:
                    first = min(first, column.dictionary_page_offset)
                ranges.append(Range(first, first + column.total_compressed_size))
    return ranges


def column_digests(stream: Any, ranges: Sequence[Range]) -> tuple[str, ...]:
    """SHA-256 of each range of a file that is open."""
    return tuple(_digest(stream, one) for one in ranges)


def _digest(stream: Any, one: Range) -> str:
    digest = hashlib.sha256()
    for start in range(one.start, one.stop, BLOCK_BYTES):
        digest.update(stream.read_at(min(BLOCK_BYTES, one.stop - start), start))
    return digest.hexdigest()


class CheckedFile(io.RawIOBase):
    """A file for pyarrow to read, which hands out only bytes that have the expected digests.

    Its `close` leaves the stream open, which belongs to the caller. What is read of a range is read once, as a whole,
    and compared; the reader gets these very bytes.

    Args:
        stream: the open file.
        shown_path: what the user calls it.
    """

    def __init__(self, stream: Any, shown_path: str) -> None:
        self._stream, self._shown_path = stream, shown_path
        self._at = 0
        self._known_ranges: list[tuple[Range, str]] = []
        self._buffer: tuple[Range, bytes] | None = None

    def expect(self, ranges: Sequence[Range], digests: Sequence[str]) -> None:
        """What the ranges have to hold from now on; those of another row group are forgotten."""
        if digests and len(ranges) != len(digests):
            raise changed_input_error(self._shown_path)
        self._known_ranges = list(zip(ranges, digests, strict=True)) if digests else []
        self._buffer = None

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        size = self._stream.size() - self._at if size < 0 else size
        parts = list(self._parts(self._at, size))
        self._at += sum(map(len, parts))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file's."""
        self._at = offset + (0, self._at, self._stream.size())[whence]
        return self._at

    def readable(self) -> bool:
        """As a file's."""
        return True

    def seekable(self) -> bool:
        """As a file's."""
        return True

    def _parts(self, at: int, size: int) -> Iterator[bytes]:
        """The bytes, those of ranges checked."""
        end = at + size
        while at < end:
            known_range = next((item for item in self._known_ranges if item[0].start <= at < item[0].stop), None)
            if known_range is None:
                stop = min([end, *(one.start for one, _ in self._known_ranges if one.start > at)])
                content = bytes(self._stream.read_at(stop - at, at))
            else:
                whole = self._content(*known_range)
                content = whole[at - known_range[0].start : end - known_range[0].start]
            if not content:
                return
            yield content
            at += len(content)

    def _content(self, one: Range, digest: str) -> bytes:
        if self._buffer is None or self._buffer[0] != one:
            content = bytes(self._stream.read_at(one.stop - one.start, one.start))
            if hashlib.sha256(content).hexdigest() != digest:
                raise changed_input_error(self._shown_path)
            self._buffer = one, content
        return self._buffer[1]


def changed_input_error(shown_path: str) -> BulkError:
    """The error for an input that is no longer what the manifest says."""
    return BulkError(
        f"{shown_path}: the input has another content than when the manifest was made; restore it and run the "
        "command again, or start in another output folder"
    )
