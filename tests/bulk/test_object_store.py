# SPDX-License-Identifier: Apache-2.0
"""Inputs and results in S3, with a server of moto on this machine as a stand-in."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from padfree.bulk import BulkError, Request
from padfree.bulk.locations import Location
from padfree.bulk.manifest import MANIFEST, read_manifest
from padfree.bulk.reading.row_groups import RowGroups
from padfree.bulk.reading.rows import parse, read_chunks
from pyarrow import fs, parquet

from tests.support.bulk_jobs import result_files, run_here, texts

pytest.importorskip("moto.server")
START_S = 60.0
TOO_LARGE = "x" * (2**18 + 1)
"""A row that gets no result."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty store with a bucket; the value is what follows the path in its URIs."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    command = [sys.executable, "-u", "-m", "moto.server", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stderr is not None
        until = time.monotonic() + START_S
        line = ""
        while "http://127.0.0.1:" not in line:
            line = server.stderr.readline()
            assert line, "the server did not start"
            assert time.monotonic() < until
        port = line.rsplit(":", 1)[1].strip()
        query = f"?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1&allow_bucket_creation=true"
        filesystem, _ = fs.FileSystem.from_uri(f"s3://bucket/x{query}")
        filesystem.create_dir("bucket")
        yield query
        server.kill()


def put(query: str, path: str, content: str) -> None:
    filesystem, location = fs.FileSystem.from_uri(f"s3://bucket/{path}{query}")
    with filesystem.open_output_stream(location) as stream:
        stream.write(content.encode())


@pytest.mark.slow
def test_results_are_those_of_the_local_disk(tmp_path: Path, embedder: Path, store: str) -> None:
    content = "\n".join([*texts(250), TOO_LARGE, "end"])
    put(store, "in/a.txt", content)
    request = Request([f"s3://bucket/in{store}"], f"s3://bucket/out{store}", embedder, shard_rows=100)
    finished = run_here(request, workers=2)
    assert finished.verified is not None
    assert (finished.verified.texts, finished.verified.bad) == (251, 1)
    output = Location.of(request.output)
    manifest = read_manifest(output)
    assert manifest.inputs[0].etag
    assert not manifest.inputs[0].digest

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(content, encoding="utf-8")
    run_here(replace(request, inputs=[str(tmp_path / "in")], output=str(tmp_path / "out")))
    local = {name: file for name, file in result_files(tmp_path / "out").items() if name.endswith(".parquet")}
    for name in local:
        ours, theirs = parquet.read_table(tmp_path / "out" / name), table(output.child(name))
        assert ours.column("id") == theirs.column("id")
        assert ours.column("embedding") == theirs.column("embedding")
    assert b'"row": 250' in output.child("_bad/part-000002.jsonl").read()
    names = {info.base_name for info in output.entries()}
    assert names == {*local, MANIFEST, "_report.json", "_bad"}

    assert run_here(request, workers=2).report.shards_found == 3
    put(store, "in/a.txt", content.replace("end", "END"))
    with pytest.raises(BulkError, match=r"s3://bucket/in/a.txt: the input is another object in the store now"):
        run_here(request)


def put_parquet(query: str, path: str, some: list[str]) -> None:
    filesystem, location = fs.FileSystem.from_uri(f"s3://bucket/{path}{query}")
    with filesystem.open_output_stream(location) as stream:
        parquet.write_table(pa.table({"text": some}), stream, row_group_size=20, use_dictionary=False)


def test_what_is_read_of_a_store_is_what_the_manifest_says(embedder: Path, store: str) -> None:
    """The object is another one while it is read, and itself again when its etag is checked."""
    some = texts(60)
    put_parquet(store, "in/a.parquet", some)
    request = Request([f"s3://bucket/in{store}"], f"s3://bucket/out{store}", embedder, shard_rows=20)
    run_here(request)
    manifest = read_manifest(Location.of(request.output))

    def read(shard: int) -> list[str]:
        with closing(RowGroups()) as groups:
            return [
                text
                for chunk in read_chunks(manifest, manifest.shards[shard], groups)
                for text in parse(chunk, manifest).texts
            ]

    assert read(2) == some[40:]
    put_parquet(store, "in/a.parquet", [*some[:-1], some[-1][::-1]])
    assert read(1) == some[20:40]
    with pytest.raises(BulkError, match="another content than when the manifest was made"):
        read(2)


def table(location: Location) -> Any:
    with location.open() as stream:
        return parquet.read_table(stream)


def test_keys_in_uris_are_refused(tmp_path: Path, embedder: Path) -> None:
    request = Request(["s3://key:secret@bucket/in"], str(tmp_path / "out"), embedder)
    with pytest.raises(BulkError, match="the URI holds a key") as error:
        run_here(request)
    assert "secret@" not in str(error.value)
    assert not (tmp_path / "out").exists()
