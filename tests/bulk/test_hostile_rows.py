# SPDX-License-Identifier: Apache-2.0
"""Rows that are null, huge, no UTF-8, or no rows at all are each named with a reason, and the others are done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from padfree.bulk import BulkError, Request
from pyarrow import parquet

from tests.support.bulk_jobs import run_here
from tests.support.folders import VOCABULARY
from tests.support.served_models import expected_rows, fault

HUGE = "a " * (1 << 19)
GOOD = {0: "a cat", 9: 'says "no",\nand goes', 10: "café"}
BAD: dict[int, Any] = {1: None, 2: HUGE, 3: b"caf\xe9", 4: "", 5: " \t "}  # the last two are texts, too


def write_parquet(path: Path) -> dict[int, str]:
    values = [GOOD.get(at, BAD.get(at, "filler")) for at in range(11)]
    raw = pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())  # as writers that do not check UTF-8 leave it
    parquet.write_table(pa.table({"key": list(range(100, 111)), "text": column}), path)
    return {1: "null", 2: "too large", 3: "not UTF-8"}


def write_json(path: Path) -> dict[int, str]:
    lines = [json.dumps({"key": 100 + at, "text": GOOD.get(at, BAD.get(at, "filler"))}).encode() for at in (0, 1, 2)]
    lines += [b'{"key": 103, "text": "caf\xe9"}', b'{"key": 104, "text": ""}', b'{"key": 105, "text": " "}']
    lines += [b"", b"{", b'{"key": "no", "text": "x"}']
    lines += [json.dumps({"key": 100 + at, "text": GOOD[at]}).encode() for at in (9, 10)]
    lines += [b'{"key": 111, "text": "\\ud800"}', b"[1]", b'{"key": 113, "text": 5}', b'{"text": "x"}']
    lines += [b'{"key": 115, "text": ' + b"[" * 100_000, b'{"key": ' + b"1" * 5000 + b', "text": "x"}']
    path.write_bytes(b"\n".join(lines))
    reasons = {1: "null", 2: "too large", 3: "not UTF-8", 6: "empty line", 7: "not JSON"}
    return {
        **reasons,
        8: "id",
        11: "not UTF-8",
        12: "not an object",
        13: "no text",
        14: "id",
        15: "not JSON",
        16: "not JSON",
    }


def write_csv(path: Path) -> dict[int, str]:
    rows = [b'"k0","a cat"', b"k1", b'k2,"' + HUGE.encode() + b'"', b"k3,caf\xe9", b"k4,", b"k5,  ", b"", b"k7,a,b"]
    rows += [b'k8,"x"y', b'k9,"says ""no"",\nand goes"', "k10,café".encode()]
    path.write_bytes(b"\xef\xbb\xbfkey,text\r\n" + b"\r\n".join(rows) + b"\r\n")
    return {1: "fields", 6: "fields", 7: "fields", 2: "too large", 3: "not UTF-8", 8: "not CSV"}


def write_text(path: Path) -> dict[int, str]:
    lines = [b"a cat", b"filler", HUGE.encode(), b"caf\xe9", b"", b" "]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return {2: "too large", 3: "not UTF-8"}


@pytest.mark.parametrize(
    ("name", "write"),
    [("in.parquet", write_parquet), ("in.jsonl", write_json), ("in.csv", write_csv), ("in.txt", write_text)],
)
def test_they_are_named(tmp_path: Path, embedder: Path, name: str, write: Callable[[Path], dict[int, str]]) -> None:
    reasons = write(tmp_path / name)
    output, has_keys = tmp_path / "out", name != "in.txt"
    request = Request([str(tmp_path / name)], str(output), embedder, id_column="key" if has_keys else None)
    finished = run_here(request)
    assert finished.verified is not None
    report = finished.report
    assert (finished.verified.texts, finished.verified.bad) == (report.texts, len(reasons))
    assert sum(report.bad.values()) == len(reasons)
    assert set(report.bad) == set(reasons.values())
    records = [json.loads(line) for line in (output / "_bad" / "part-000000.jsonl").read_text().splitlines()]
    assert [record["row"] for record in records] == sorted(reasons)
    for record in records:
        assert record["file"] == str(tmp_path / name)
        assert record["reason"].startswith(reasons[record["row"]]), record
        assert len(record["reason"]) < 200
    table = parquet.read_table(output)
    results = dict(zip(table.column("id").to_pylist(), table.column("embedding").to_pylist(), strict=True))
    keys: dict[str, Callable[[int], Any]] = {"in.csv": "k{}".format, "in.txt": int}
    key = keys.get(name, lambda at: 100 + at)
    good = [at for at in GOOD if key(at) in results]
    assert good == ([0] if name == "in.txt" else list(GOOD))
    vectors = [results[key(at)] for at in good]
    np.testing.assert_allclose(vectors, expected_rows([GOOD[at] for at in good]), rtol=1e-4, atol=1e-4)


def test_files_without_rows_do_not_stop_the_others(tmp_path: Path, embedder: Path) -> None:
    """Some writers leave files of no bytes, which have no header either."""
    (tmp_path / "in").mkdir()
    for name, content in (("a.csv", b""), ("b.csv", b"text\na cat\n"), ("c.csv", b"\xef\xbb\xbf"), ("d.jsonl", b"")):
        (tmp_path / "in" / name).write_bytes(content)
    finished = run_here(Request([str(tmp_path / "in")], str(tmp_path / "out"), embedder))
    assert (finished.report.texts, finished.report.bad) == (1, {})


def test_a_file_with_nulls_alone_does_not_stop_the_others(tmp_path: Path, embedder: Path) -> None:
    """pandas writes a column of None without a type."""
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({"text": pa.nulls(2)}), tmp_path / "in" / "a.parquet")
    parquet.write_table(pa.table({"text": ["a cat"]}), tmp_path / "in" / "b.parquet")
    finished = run_here(Request([str(tmp_path / "in")], str(tmp_path / "out"), embedder))
    assert (finished.report.texts, finished.report.bad) == (1, {"null": 2})


def test_a_limit_of_bytes_can_be_raised_and_what_is_cut_is_counted(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text(f"a cat\n{HUGE}\n", encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), embedder, max_text_bytes=1 << 21)
    report = run_here(request).report
    assert (report.texts, report.cut, report.bad) == (2, 1, {})


def test_results_that_are_no_numbers_are_bad_rows(tmp_path: Path, embedder: Path) -> None:
    lines = ["a cat", "the dog " * 60, "my house"]
    (tmp_path / "in.txt").write_text("\n".join(lines), encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "fine"), embedder, dtype="float16")
    assert run_here(request).report.bad == {}
    scaled = write_scaled(tmp_path / "scaled.onnx", embedder)
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), scaled, dtype="float16")
    report = run_here(request).report
    assert (report.texts, report.bad) == (2, {"not finite": 1})
    assert parquet.read_table(tmp_path / "out").column("id").to_pylist() == [0, 2]
    record = json.loads((tmp_path / "out" / "_bad" / "part-000000.jsonl").read_text())
    assert (record["row"], record["id"]) == (1, 1)
    assert "more than float16 holds" in record["reason"]


def write_scaled(path: Path, model: Path) -> Path:
    """Writes the model with a table of large numbers, only sums of which are beyond half precision."""
    import shutil

    import onnx
    from onnx import numpy_helper
    from padfree.runtime.texts import tokenizer_path

    content = onnx.load(model)
    for tensor in content.graph.initializer:
        if tensor.name == "table":
            tensor.CopyFrom(numpy_helper.from_array(np.full((VOCABULARY - 1, 8), 1000, np.float32), "table"))
    onnx.save(content, path)
    shutil.copy(tokenizer_path(model), tokenizer_path(path))
    return path


def test_a_run_that_fails_ends_the_job_and_names_the_failure(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text(f"a cat\n{fault()}\n", encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), embedder)
    with pytest.raises(BulkError, match=r"CPU worker 0: onnxruntime failed on input_ids"):
        run_here(request)
    assert not list((tmp_path / "out").glob("part-*"))
