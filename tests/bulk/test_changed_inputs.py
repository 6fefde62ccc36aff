# SPDX-License-Identifier: Apache-2.0
"""No results are made from inputs that are edited in place and keep their size and time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from padfree.bulk import BulkError, Request
from padfree.bulk.locations import Location
from padfree.bulk.manifest import Piece, read_manifest
from padfree.bulk.reading.checked_file import CheckedFile, Range, column_digests
from pyarrow import parquet

from tests.support.bulk_jobs import result_files, run_here, texts, write_lines

ROWS, SHARD_ROWS = 60, 20
OLD, NEW = "a cat of the last shard", "a dog of the last shard"


def rows() -> list[str]:
    return [*texts(ROWS - 1), OLD]


def write_csv(path: Path) -> None:
    path.write_text("text\n" + "".join(f'"{text}"\n' for text in rows()), encoding="utf-8")


def write_parquet(path: Path, codec: str = "none") -> None:
    table = pa.table({"id": list(range(ROWS)), "text": rows()})
    parquet.write_table(table, path, row_group_size=SHARD_ROWS, compression=codec, use_dictionary=False)


WRITERS: dict[str, Callable[[Path], object]] = {
    "in.jsonl": lambda path: write_lines(path, [{"text": text} for text in rows()]),
    "in.csv": write_csv,
    "in.txt": lambda path: path.write_text("\n".join(rows()) + "\n", encoding="utf-8"),
    "in.parquet": write_parquet,
}


def edit(path: Path) -> None:
    """Replaces one text by another; the size, the time and the parquet footer stay the same."""
    before, content = path.stat(), path.read_bytes()
    at = content.index(OLD.encode())
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(NEW.encode())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.fixture(params=sorted(WRITERS))
def job(request: pytest.FixtureRequest, tmp_path: Path, embedder: Path) -> Request:
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return Request([str(path)], str(tmp_path / "out"), embedder, shard_rows=SHARD_ROWS)


def test_a_shard_of_changed_rows_is_not_made(job: Request) -> None:
    path, output = Path(job.inputs[0]), Path(job.output)
    run_here(job)
    whole = result_files(output)
    (output / "part-000002.parquet").unlink()
    content, times = path.read_bytes(), path.stat()
    edit(path)
    with pytest.raises(BulkError, match="another content than when the manifest was made"):
        run_here(job, read_back=False)
    assert not (output / "part-000002.parquet").exists()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    run_here(job)
    assert result_files(output) == whole


def test_verify_reads_the_inputs_as_the_manifest_has_them(job: Request) -> None:
    run_here(job)
    edit(Path(job.inputs[0]))
    with pytest.raises(BulkError, match="another content than when the manifest was made"):
        run_here(job, read_back=True)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_files_that_did_not_change_are_read_as_ever(tmp_path: Path, embedder: Path, codec: str) -> None:
    write_parquet(tmp_path / "in.parquet", codec)
    job = Request([str(tmp_path / "in.parquet")], str(tmp_path / "out"), embedder, shard_rows=7, id_column="id")
    verified = run_here(job).verified
    assert verified is not None
    assert verified.texts == ROWS


def test_manifests_of_earlier_versions_have_the_parts_that_they_had(tmp_path: Path, embedder: Path) -> None:
    path = tmp_path / "in.jsonl"
    write_lines(path, [{"text": text} for text in rows()])
    run_here(Request([str(path)], str(tmp_path / "out"), embedder, shard_rows=SHARD_ROWS))
    file = tmp_path / "out" / "_manifest.json"
    content = json.loads(file.read_text("utf-8"))
    for shard in content["shards"]:
        for piece in shard:
            assert len(piece.pop("digests")) == 1
    file.write_text(json.dumps(content), "utf-8")
    manifest = read_manifest(Location.of(str(tmp_path / "out")))
    assert manifest.shards[0] == (Piece(0, 0, manifest.shards[0][0].size, 0, SHARD_ROWS),)
    assert "digests" not in json.dumps(manifest.to_dict()["shards"])


def test_reads_of_any_kind_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    with Location.of(str(path)).open() as stream:
        ranges = [Range(20, 60), Range(100, 150)]
        digests = column_digests(stream, ranges)
        checked = CheckedFile(stream, "file")
        checked.expect(ranges, digests)
        for at, size in ((0, 200), (0, 10), (30, 5), (55, 100), (120, -1), (190, 50)):
            checked.seek(at)
            assert checked.read(size) == bytes(range(200))[at : None if size < 0 else at + size]
        checked.expect(ranges, [digests[0], digests[0]])
        checked.seek(99)
        assert checked.read(1) == bytes([99])
        with pytest.raises(BulkError, match="another content"):
            checked.read(1)
