# SPDX-License-Identifier: Apache-2.0
"""Reads a result back: every row of the inputs is in it once, in order, with finite numbers, or is listed as bad."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from .errors import BulkError
from .heads import LABEL, LABELS
from .locations import Location
from .manifest import Manifest
from .parts import ID, Part, bad_name, part_name, read_part
from .reading.row_groups import RowGroups
from .reading.rows import parse, read_chunks


@dataclass(frozen=True)
class Verified:
    """What was found right.

    Attributes:
        texts: rows with a result.
        bad: rows that are named as bad.
    """

    texts: int
    bad: int


def verify(output: Location, manifest: Manifest) -> Verified:
    """Compares all parts with the inputs, whose ids are read again.

    Raises:
        BulkError: a part is missing, damaged, or holds other rows than its shard; the message names the first one.
    """
    texts = bad = 0
    with closing(RowGroups()) as groups:
        for shard in range(len(manifest.shards)):
            part = read_part(output, shard, manifest.digest)
            location = output.child(part_name(shard))
            if part is None:
                raise BulkError(
                    f"{location.shown_path}: missing or damaged; run the same command again, which makes it anew"
                )
            rows = _bad_rows(output, shard) if part.bad else {}
            if len(rows) != sum(part.bad.values()):
                bad_count = sum(part.bad.values())
                raise _wrong(output.child(bad_name(shard)), f"{len(rows)} bad rows, the part says {bad_count}")
            _check_part(location, part, _expected_ids(manifest, shard, rows, groups))
            texts, bad = texts + part.texts, bad + len(rows)
    if texts + bad != manifest.rows:
        raise BulkError(f"{output.shown_path}: {texts} texts and {bad} bad rows, the inputs have {manifest.rows} rows")
    return Verified(texts, bad)


def _bad_rows(output: Location, shard: int) -> dict[tuple[str, int], str]:
    """Reasons by file and row."""
    lines = output.child(bad_name(shard)).read().decode().splitlines()
    records = map(json.loads, lines)
    return {(record["file"], record["row"]): record["reason"] for record in records}


def _expected_ids(
    manifest: Manifest, shard: int, bad: dict[tuple[str, int], str], groups: RowGroups
) -> list[int | str | None]:
    """Ids of the rows that are not bad, as the inputs have them."""
    pieces = manifest.shards[shard]
    shown_by_file = {piece.file: manifest.inputs[piece.file].location().shown_path for piece in pieces}
    ids: list[int | str | None] = []
    for chunk in read_chunks(manifest, pieces, groups):
        for at, identifier in enumerate(parse(chunk, manifest).ids):
            if (shown_by_file[chunk.file], chunk.first + at) not in bad:
                ids.append(identifier)
    return ids


def _check_part(location: Location, part: Part, expected: list[int | str | None]) -> None:
    try:
        with location.open() as stream:
            table = parquet.read_table(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise _wrong(location, str(error)) from error
    ids = table.column(ID).to_pylist()
    if ids != expected:
        at = next((at for at, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]), len(expected))
        id_lists = [list(some[at : at + 1]) for some in (ids, expected)]
        raise _wrong(
            location,
            f"{len(ids)} rows, the inputs have {len(expected)}; row {at} is {id_lists[0]}, expected {id_lists[1]}",
        )
    for name in [name for name in table.column_names[1:] if name not in (LABEL, LABELS)]:
        if not all(np.isfinite(values).all() for values in _numbers(table.column(name).chunks)):
            raise _wrong(location, f"'{name}' holds values that are not finite")
    if len(ids) != part.texts:
        raise _wrong(location, f"{len(ids)} rows, its metadata says {part.texts}")


def _numbers(chunks: Iterable[Any]) -> Iterable[Any]:
    for chunk in chunks:
        values = chunk
        while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
            values = values.flatten()
        yield values.to_numpy(zero_copy_only=False)


def _wrong(location: Location, reason: str) -> BulkError:
    return BulkError(f"{location.shown_path}: {reason}; remove it and run the same command again, which makes it anew")
