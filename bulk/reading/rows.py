# SPDX-License-Identifier: Apache-2.0
"""The rows of a shard, in chunks: one process reads them, another one turns them into ids and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from padfree.contract.data_files import PARQUET
from padfree.runtime.texts import Text

from ..errors import BulkError
from ..locations import Location
from ..manifest import Manifest, Options, Piece, Shard
from .checked_file import changed_input_error
from .records import Reader, RecordError, blocks, decode_text, json_kind, reader_of, split, whole_records
from .row_groups import RowGroups, text_bytes

CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Chunk:
    """Rows that follow each other, as they were read.

    Attributes:
        file: index of the input.
        first: index of the first row in the file.
        data: whole records of a text file, or columns of a parquet file by their names.
    """

    file: int
    first: int
    data: Any


@dataclass(frozen=True)
class BadRow:
    """A row that got no result.

    Attributes:
        file: index of the input.
        row: its index in the file.
        kind: the reason in a word or two, by which bad rows are counted.
        reason: the same with the details of this row.
        id: the row's id, if it could be read.
    """

    file: int
    row: int
    kind: str
    reason: str
    id: int | str | None = None


@dataclass(frozen=True)
class ParsedRows:
    """A chunk's rows: ids and texts of all of them, where bad ones have None, and the list of bad ones.

    `values` has those of the columns in Options.values, by row; it is empty if there are no such columns.
    """

    ids: list[int | str | None]
    texts: list[Text | None]
    bad: list[BadRow] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)


def read_chunks(manifest: Manifest, shard: Shard, groups: RowGroups) -> Iterator[Chunk]:
    """The rows of a shard, in order.

    Args:
        manifest: what the shard is part of.
        shard: its pieces.
        groups: reads parquet files; the same one for all shards of a worker.

    Raises:
        BulkError: an input cannot be read, or its content has changed since the manifest was made. The latter is known
            only after the piece has been read, whose rows are then of no use.
    """
    for piece in shard:
        rows, digest = 0, hashlib.sha256()
        for chunk, count in _chunks(manifest, piece, groups):
            rows += count
            if isinstance(chunk.data, bytes):
                digest.update(chunk.data)
            yield chunk
        file = manifest.inputs[piece.file]
        if file.format != PARQUET and piece.digests and piece.digests != (digest.hexdigest(),):
            raise changed_input_error(file.location().shown_path)
        if rows != piece.rows:
            raise BulkError(
                f"{manifest.inputs[piece.file].location().shown_path}: {rows} rows from row {piece.first} on where "
                f"there were {piece.rows}: it has changed while it was read; restore it and run the command again"
            )


def _chunks(manifest: Manifest, piece: Piece, groups: RowGroups) -> Iterator[tuple[Chunk, int]]:
    """Chunks of a piece, and how many rows they have."""
    file, first = manifest.inputs[piece.file], piece.first
    if file.format == PARQUET:
        for table in groups.tables(manifest, piece):
            yield Chunk(piece.file, first, table), table.num_rows
            first += table.num_rows
    else:
        yield from _record_chunks(manifest, piece, file.location())


def _record_chunks(manifest: Manifest, piece: Piece, location: Location) -> Iterator[tuple[Chunk, int]]:
    """Chunks of a text file, and how many rows they have."""
    first = piece.first
    with location.open() as stream:
        parts = blocks(stream, piece.at, piece.size, CHUNK_BYTES)
        for data, rows in whole_records(parts, manifest.inputs[piece.file].format):
            yield Chunk(piece.file, first, data), rows
            first += rows


def parse(chunk: Chunk, manifest: Manifest) -> ParsedRows:
    """Ids and texts of a chunk; rows without them are listed as bad and do not stop the others."""
    file, options = manifest.inputs[chunk.file], manifest.options
    if file.format == PARQUET:
        columns = {name: text_bytes(chunk.data.column(name)).to_pylist() for name in chunk.data.column_names}
        rows: list[Mapping[str, Any] | RecordError] = [
            dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
    else:
        reader = reader_of(file.format, file.columns or options.columns)
        rows = [_attempt(reader, record) for record in split(chunk.data, file.format)]
    offset = manifest.first_rows[chunk.file] + chunk.first
    parsed = ParsedRows([], [])
    for at, row in enumerate(rows):
        identifier: int | str | None = None
        text: Text | None = None
        values: tuple[Any, ...] = ()
        try:
            if isinstance(row, RecordError):
                raise row
            identifier = offset + at if options.id_column is None else _id(row.get(options.id_column), manifest.id_type)
            text = _text(row, options)
            values = tuple(map(row.get, options.values))
        except RecordError as error:
            kind, _, _ = str(error).partition(":")
            parsed.bad.append(BadRow(chunk.file, chunk.first + at, kind, str(error), identifier))
        parsed.ids.append(identifier)
        parsed.texts.append(text)
        if options.values:
            parsed.values.append(values)
    return parsed


def _attempt(reader: Reader, record: bytes) -> Mapping[str, Any] | RecordError:
    try:
        return reader(record)
    except RecordError as error:
        return error


def _id(value: Any, kind: str) -> int | str:
    if isinstance(value, bytes):
        value = decode_text(value)
    if kind == "int64" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "string" and isinstance(value, str):
        _utf8(value)
        return value
    raise RecordError(f"id: {ascii(value)[:60]}, expected {kind}")


def _text(row: Mapping[str, Any], options: Options) -> Text:
    texts = [_one_text(row.get(column), column, options.max_text_bytes) for column in options.columns]
    return (texts[0], texts[1]) if len(texts) > 1 else texts[0]


def _one_text(value: Any, column: str, most: int) -> str:
    if value is None:
        raise RecordError(f"null: no value in '{column}'")
    if not isinstance(value, (str, bytes)):
        raise RecordError(f"no text: '{column}' is {json_kind(value)}")
    raw = _utf8(value) if isinstance(value, str) else value
    if len(raw) > most:
        raise RecordError(f"too large: '{column}' has {len(raw)} bytes, allowed: {most}")
    return value if isinstance(value, str) else decode_text(value)


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"not UTF-8: half a surrogate pair at {error.start}") from error
