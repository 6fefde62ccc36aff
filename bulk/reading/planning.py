# SPDX-License-Identifier: Apache-2.0
"""Makes a manifest: counts the rows of inputs, and cuts them into shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from padfree.contract.data_files import CSV, JSON_LINES, PARQUET, TEXT, other_separator
from pyarrow import parquet

from ..errors import BulkError
from ..manifest import ROW_NUMBERS, InputFile, Manifest, Model, Options, Piece, Shard
from .checked_file import column_digests, column_ranges
from .inputs import BEGINNING_BYTES, SourceFile, find, identity
from .records import BOM, Ends, RecordError, blocks, csv_header, reader_of
from .row_groups import column_names, is_text

SMALLEST_PART = 0.5
"""A row group is cut where the rest would be a shard of at least this fraction of its size."""


def make_manifest(sources: Sequence[str], options: Options, model: Model) -> Manifest:
    """Looks at all inputs: reads text files once, and of parquet files the footer and the columns that are asked for.

    Raises:
        BulkError: inputs that cannot be read, or lack a column.
    """
    source_files = find(sources)
    with ThreadPoolExecutor(min(16, len(source_files), os.cpu_count() or 1)) as pool:
        files_read = list(pool.map(partial(_look, options=options), source_files))
    kinds = {kind: file for file, (of_file, _, kind) in zip(source_files, files_read, strict=True) if of_file.rows}
    if len(kinds) > 1:
        files_text = ", ".join(f"{kind} in {file.location.shown_path}" for kind, file in kinds.items())
        raise BulkError(f"--id {options.id_column}: ids are {files_text}; convert them to one type")
    pieces = [
        replace(piece, file=at) for at, (_, of_file, _) in enumerate(files_read) for piece in of_file if piece.rows
    ]
    if not pieces:
        raise BulkError(f"{', '.join(sources)}: there are no rows; check the inputs")
    files = tuple(file for file, _, _ in files_read)
    return Manifest(model, options, next(iter(kinds)), files, tuple(_shards(pieces, options.shard_rows)))


def _shards(pieces: Sequence[Piece], rows: int) -> Iterator[Shard]:
    """Joins consecutive pieces into shards of at most `rows` rows; a larger piece is a shard by itself."""
    shard: list[Piece] = []
    row_count = 0
    for piece in pieces:
        if shard and row_count + piece.rows > rows:
            yield tuple(shard)
            shard, row_count = [], 0
        shard.append(piece)
        row_count += piece.rows
    if shard:
        yield tuple(shard)


def _look(file: SourceFile, options: Options) -> tuple[InputFile, list[Piece], str]:
    """A file as the manifest has it, its rows in pieces, and the type of its ids."""
    if file.format == PARQUET:
        pieces, kind = _parquet(file, options)
        columns: tuple[str, ...] = ()
    else:
        columns, begin = _header(file, options)
        pieces = list(_cut(file, begin, options.shard_rows))
        kind = _id_kind(file, pieces, options)
    return identity(file, sum(piece.rows for piece in pieces), columns), pieces, kind


def _parquet(file: SourceFile, options: Options) -> tuple[list[Piece], str]:
    """The pieces of a parquet file, one or (of large ones) several per row group, and the type of its ids."""
    try:
        with file.location.open() as stream, parquet.ParquetFile(stream) as parquet_file:
            schema = parquet_file.schema_arrow
            groups = [
                parquet_file.metadata.row_group(at).num_rows for at in range(parquet_file.metadata.num_row_groups)
            ]
            digests = _digests(stream, parquet_file.metadata, options)
    except (pa.ArrowInvalid, OSError) as error:
        raise BulkError(f"{file.location.shown_path}: not a whole parquet file ({error}); copy it again") from error
    for column in options.columns:
        _require(file, column, schema.names, options)
        if not is_text(schema.field(column).type):
            raise BulkError(
                f"{file.location.shown_path}: the column '{column}' is {schema.field(column).type}, allowed: string or "
                "binary; choose another column"
            )
    for column in options.values:
        _require(file, column, schema.names, options)
    pieces, first = [], 0
    for at, rows in enumerate(groups):
        for skip, part in _parts(rows, options.shard_rows):
            pieces.append(Piece(0, at, skip, first + skip, part, digests[at]))
        first += rows
    if options.id_column is None:
        return pieces, ROW_NUMBERS
    _require(file, options.id_column, schema.names, options)
    kind = schema.field(options.id_column).type
    if not (pa.types.is_integer(kind) or is_text(kind)) or pa.types.is_uint64(kind):
        raise BulkError(
            f"{file.location.shown_path}: the column '{options.id_column}' is {kind}, allowed: integers up to 64 bits "
            "with a sign, and strings; pass another --id, or none to number the rows"
        )
    return pieces, "int64" if pa.types.is_integer(kind) else "string"


def _digests(stream: Any, metadata: Any, options: Options) -> list[tuple[str, ...]]:
    """Digests of the columns that are read, by row group."""
    names = column_names(options)
    return [column_digests(stream, column_ranges(metadata, at, names)) for at in range(metadata.num_row_groups)]


def _parts(rows: int, shard_rows: int) -> Iterator[tuple[int, int]]:
    """(rows before, rows) of the parts of a row group."""
    start = 0
    while rows - start > (1 + SMALLEST_PART) * shard_rows:
        yield start, shard_rows
        start += shard_rows
    yield start, rows - start


def _header(file: SourceFile, options: Options) -> tuple[tuple[str, ...], int]:
    """The columns of a CSV file, and where rows begin."""
    beginning = file.beginning()
    begin = len(BOM) if beginning.startswith(BOM) else 0
    if file.format == JSON_LINES:
        return (), begin
    if file.format == TEXT:
        if options.values:
            raise BulkError(
                f"{file.location.shown_path}: a text file has one text per line, and the model also reads "
                f"{', '.join(options.values)} for every text; pass CSV, JSON lines or parquet with such columns"
            )
        if options.id_column is not None or len(options.columns) > 1:
            raise BulkError(
                f"{file.location.shown_path}: a text file has one text per line, and neither ids nor pairs; leave --id "
                "out, or pass CSV, JSON lines or parquet"
            )
        return (), begin
    columns, stop = csv_header(beginning, file.location.shown_path)
    if columns:
        for column in (*options.columns, *options.values, *([options.id_column] if options.id_column else [])):
            _require(file, column, columns, options)
    return columns, stop


def _cut(file: SourceFile, begin: int, shard_rows: int) -> Iterator[Piece]:
    """Cuts a file of records into pieces of `shard_rows` rows; the last one has the rest."""
    ends = Ends(quoted=file.format == CSV)
    start = at = begin
    first = rows = 0
    digest = hashlib.sha256()
    with file.location.open() as stream:
        for block in blocks(stream, begin, file.size - begin):
            hash_start, open_ends = 0, ends.open
            count = ends.count(block)
            if rows + count >= shard_rows:
                ends.open = open_ends
                for end in ends.positions(block).tolist()[shard_rows - rows - 1 :: shard_rows]:
                    digest.update(block[hash_start:end])
                    yield Piece(0, start, at + end - start, first, shard_rows, (digest.hexdigest(),))
                    hash_start, digest = end, hashlib.sha256()
                    start, first = at + end, first + shard_rows
                rows = (rows + count) % shard_rows
            else:
                rows += count
            digest.update(block[hash_start:])
            at += len(block)
            last = block[-1:]
    if ends.open:
        raise BulkError(
            f"{file.location.shown_path}: a double quote is never closed from row {first + rows} on (the first is 0), "
            "so that records cannot be told apart; write quotes within quoted fields twice"
        )
    rows += int(at > begin and last != b"\n")
    if rows:
        yield Piece(0, start, at - start, first, rows, (digest.hexdigest(),))


def _id_kind(file: SourceFile, pieces: Sequence[Piece], options: Options) -> str:
    """The type of ids: in JSON lines that of the first one, in CSV files string."""
    first = _first_objects(file, pieces, options) if file.format == JSON_LINES and pieces else []
    if options.id_column is None:
        return ROW_NUMBERS
    if file.format == CSV or not pieces:
        return "string"
    for row in first:
        value = row.get(options.id_column)
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return "int64" if isinstance(value, int) else "string"
    raise BulkError(
        f"{file.location.shown_path}: no '{options.id_column}' that is an integer or a string; pass another --id, or "
        "none to number the rows"
    )


def _first_objects(file: SourceFile, pieces: Sequence[Piece], options: Options) -> list[Mapping[str, Any]]:
    """The objects of the first lines, one of which has to have each column: a row may lack it, a file may not.

    Raises:
        BulkError: none of them has a column of texts.
    """
    reader, objects = reader_of(file.format, ()), list[Mapping[str, Any]]()
    with file.location.open() as stream:
        stream.seek(pieces[0].at)
        for line in bytes(stream.read(min(pieces[0].size, BEGINNING_BYTES))).split(b"\n"):
            with suppress(RecordError):  # a bad row says nothing of the others
                objects.append(reader(line))
    names = tuple(dict.fromkeys(name for row in objects for name in row))
    for column in options.columns if objects else ():
        _require(file, column, names, options)
    return objects


def _require(file: SourceFile, column: str, columns: Sequence[str], options: Options) -> None:
    if column not in columns:
        columns_text, remedy = ", ".join(columns[:20]), f"name one of them with {_option_of(column, options)}"
        if column in options.values:
            remedy = "the model reads it for every text: add it"
        elif file.format == CSV and (other := other_separator(columns)):
            columns_text, remedy = ascii(columns[0]), f"separate columns with commas, not {other}"
        raise BulkError(f"{file.location.shown_path}: no column '{column}', there are {columns_text}; {remedy}")
    if columns.count(column) > 1:
        raise BulkError(
            f"{file.location.shown_path}: the column '{column}' is there {columns.count(column)} times, allowed: once; "
            "rename the others"
        )


def _option_of(column: str, options: Options) -> str:
    """The command line's option that names a column."""
    if column not in options.columns:
        return "--id"
    return "--text" if len(options.columns) == 1 else ("--query", "--document")[options.columns.index(column)]
