# SPDX-License-Identifier: Apache-2.0
"""The files of a result: a part per shard, with bad rows beside it; what a part says about itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from padfree.contract.fields import MOST_INT64, Fields, decode
from pyarrow import parquet

from .errors import BulkError
from .heads import Columns
from .locations import Location
from .manifest import Manifest
from .reading.rows import BadRow

KEY = b"padfree"
ID = "id"
PART, BAD_FOLDER = "part-", "_bad"


@dataclass(frozen=True)
class Part:
    """What stands in a part's own metadata; the same for every run of the shard.

    Attributes:
        manifest: its digest.
        shard: its number.
        texts: rows with a result.
        tokens: tokens of these.
        cut: texts that lost their ends.
        bad: rows without a result by the kind of reason.
    """

    manifest: str
    shard: int
    texts: int
    tokens: int
    cut: int
    bad: Mapping[str, int]


def part_name(shard: int) -> str:
    """The file of a shard."""
    return f"{PART}{shard:06d}.parquet"


def bad_name(shard: int) -> str:
    """The file of a shard's bad rows."""
    return f"{BAD_FOLDER}/{PART}{shard:06d}.jsonl"


def write_part(
    output: Location, part: Part, ids: Any, columns: Columns, bad: Sequence[BadRow], manifest: Manifest
) -> None:
    """Writes what became of a shard. Bad rows go first: the part's file is what makes the shard done.

    Raises:
        BulkError: it cannot be written; the shard is not done.
    """
    if bad:
        if output.is_local:
            output.child(BAD_FOLDER).make_folder()
        output.child(bad_name(part.shard)).write(_bad_lines(bad, manifest))
    table = pa.table({ID: ids, **columns})
    table = table.replace_schema_metadata({KEY: json.dumps(asdict(part)).encode()})
    sink = pa.BufferOutputStream()
    # Vectors hold nothing that a codec or a dictionary would find.
    parquet.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=[ID])
    output.child(part_name(part.shard)).write(sink.getvalue())


def part_of(manifest: Manifest, digest: str, shard: int, tokens: int, cut: int, bad: Sequence[BadRow]) -> Part:
    """A shard's own description."""
    kinds = Counter(row.kind for row in bad)
    return Part(digest, shard, manifest.shard_rows(shard) - len(bad), tokens, cut, dict(sorted(kinds.items())))


def _bad_lines(bad: Sequence[BadRow], manifest: Manifest) -> bytes:
    lines = []
    for row in bad:
        file = manifest.inputs[row.file].location().shown_path
        lines.append(json.dumps({"file": file, "row": row.row, "id": row.id, "reason": row.reason}))
    return ("\n".join(lines) + "\n").encode()


def read_part(output: Location, shard: int, digest: str) -> Part | None:
    """What a part says about itself; None where it is no whole file.

    Raises:
        BulkError: it belongs to another manifest.
    """
    location = output.child(part_name(shard))
    try:
        with location.open() as stream:
            metadata = parquet.read_metadata(stream)
            raw = (metadata.metadata or {}).get(KEY, b"")
            rows = metadata.num_rows
    except (pa.ArrowInvalid, OSError):
        return None
    try:
        fields = Fields(decode(raw.decode()), location.shown_path, error=BulkError)
    except ValueError:
        return None
    part = Part(
        manifest=fields.string("manifest"),
        shard=fields.integer("shard"),
        **{name: fields.integer(name, most=MOST_INT64) for name in ("texts", "tokens", "cut")},
        bad=fields.counts("bad"),
    )
    if part.manifest != digest or part.shard != shard:
        raise BulkError(
            f"{location.shown_path}: shard {part.shard} of manifest {part.manifest[:12]}..., expected shard {shard} of "
            f"{digest[:12]}...: a part of another result; move it away, or pass another output folder"
        )
    return part if part.texts == rows else None
