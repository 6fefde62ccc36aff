# SPDX-License-Identifier: Apache-2.0
"""Rows of parquet files, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from ..errors import BulkError
from ..manifest import Manifest, Options, Piece
from .checked_file import CheckedFile, column_ranges

CHUNK_ROWS = 1024
"""The most rows of a table that is read: as many as one process tokenises at a time."""


class RowGroups:
    """Reads pieces of row groups. A piece that begins where the last one ended, or later, is read on from there.

    Rows of a group cannot be found without those before them: on one core the last 65,536 of a million texts of 900
    letters take 0.8 s alone, and 0.05 s after those before them.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._file: tuple[int, Any, CheckedFile] | None = None
        self._group: tuple[int, int] | None = None
        self._next = 0  # row of the group that the next batch begins with
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None  # of a batch whose beginning belonged to the last piece

    def tables(self, manifest: Manifest, piece: Piece) -> Iterator[Any]:
        """The rows of a piece in tables, fewer rows than it names where the file has no more.

        Raises:
            BulkError: the file cannot be read.
        """
        try:
            if self._group != (piece.file, piece.at) or self._next > piece.size:
                self._begin(manifest, piece)
            rows_wanted, end = piece.size, piece.size + piece.rows
            while rows_wanted < end:
                is_rest = self._rest is not None
                batch, self._rest = self._rest if is_rest else next(self._batches, None), None
                if batch is None:
                    self.close()
                    return
                skip = min(rows_wanted - self._next, batch.num_rows)
                part = batch.slice(skip, end - rows_wanted)
                rows_used = skip + part.num_rows
                self._rest = batch.slice(rows_used) if rows_used < batch.num_rows else None
                self._next += rows_used
                rows_wanted += part.num_rows
                if part.num_rows:
                    is_part = is_rest or part.num_rows < batch.num_rows
                    # A slice would take the whole batch along to another process.
                    yield pa.table(part).combine_chunks() if is_part else pa.table(part)
        except (pa.ArrowInvalid, OSError) as error:
            self.close()
            shown_path = manifest.inputs[piece.file].location().shown_path
            raise BulkError(f"{shown_path}: not a whole parquet file ({error}); copy it again") from error

    def close(self) -> None:
        """Closes the file that is open."""
        self._batches, self._rest, self._group, self._file = iter(()), None, None, None
        self._open.close()

    def _begin(self, manifest: Manifest, piece: Piece) -> None:
        """Goes to the first row of the piece's group."""
        names = column_names(manifest.options)
        parquet_file, checked_file = self._open_file(manifest, piece.file)
        self._batches, self._rest, self._group, self._next = iter(()), None, (piece.file, piece.at), 0
        if piece.at < parquet_file.num_row_groups:
            checked_file.expect(column_ranges(parquet_file.metadata, piece.at, names), piece.digests)
            self._batches = parquet_file.iter_batches(
                CHUNK_ROWS, row_groups=[piece.at], columns=names, use_threads=False
            )

    def _open_file(self, manifest: Manifest, file: int) -> tuple[Any, CheckedFile]:
        """The file, which stays open until another one is wanted."""
        if self._file is None or self._file[0] != file:
            self.close()
            location = manifest.inputs[file].location()
            checked_file = CheckedFile(self._open.enter_context(location.open()), location.shown_path)
            source = pa.PythonFile(checked_file, mode="r")
            self._file = file, self._open.enter_context(parquet.ParquetFile(source)), checked_file
        return self._file[1:]


def column_names(options: Options) -> list[str]:
    """The columns that are read, each once."""
    return list(dict.fromkeys([*options.columns, *options.values, *([options.id_column] if options.id_column else [])]))


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds strings or bytes, or nothing; also where each is stored once (categories)."""
    return _inner(kind) in _BYTES


def text_bytes(column: Any) -> Any:
    """A column of strings as bytes, because they may be no valid UTF-8; other columns as they are."""
    kind = _inner(column.type)
    return column.cast(kind).cast(_BYTES[kind]) if kind in _BYTES else column


def _inner(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_BYTES = {
    pa.null(): pa.binary(),  # of a column without values, as writers that look at these leave it
    pa.string(): pa.binary(),
    pa.binary(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.large_binary(): pa.large_binary(),
    pa.string_view(): pa.large_binary(),
    pa.binary_view(): pa.large_binary(),
}
"""Types of texts, and of their bytes."""
