# SPDX-License-Identifier: Apache-2.0
"""Records of text files and rows of parquet files: none is lost or read twice, wherever files are cut."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.bulk import BulkError
from padfree.bulk.locations import Location
from padfree.bulk.manifest import Manifest, Model, Options, read_manifest, write_manifest
from padfree.bulk.reading.pair_columns import pair_columns
from padfree.bulk.reading.planning import make_manifest
from padfree.bulk.reading.records import csv_fields, split, whole_records
from padfree.bulk.reading.row_groups import CHUNK_ROWS, RowGroups
from padfree.bulk.reading.rows import parse, read_chunks
from padfree.bulk.reading.tokens import TextTokens, _main
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.text.inputs import TextInputs
from padfree.runtime.texts import read_tokenizer
from pyarrow import parquet

from tests.support.bulk_jobs import DIGEST, texts, write_lines
from tests.support.folders import TOKENIZER

FIELDS = st.lists(st.lists(st.text('ab",\n\r é', max_size=6), min_size=2, max_size=2), min_size=1, max_size=12)


def options(**changed: object) -> Options:
    result = Options("embed", "out", ("text",), None, "", 64, "float32", 1 << 18, 10, None, None)
    return Options(**{**vars(result), **changed})  # type: ignore[arg-type]


def plan(paths: list[Path], **changed: object) -> Manifest:
    return make_manifest([str(path) for path in paths], options(**changed), Model("m", "0", DIGEST))


def rows_of(manifest: Manifest) -> list[list[tuple[object, object]]]:
    """(id, text) of every row, by shard."""
    results = []
    for shard in manifest.shards:
        parsed = [parse(chunk, manifest) for chunk in read_chunks(manifest, shard, RowGroups())]
        results.append([pair for one in parsed for pair in zip(one.ids, one.texts, strict=True)])
    return results


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_row_groups_in_any_order(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in ("a", "b"):
        rows = [f"{name} {at}" for at in range(9000)]
        parquet.write_table(pa.table({"text": rows}), tmp_path / f"{name}.parquet", row_group_size=4700)
    manifest = plan([tmp_path], shard_rows=700)
    alone, groups = rows_of(manifest), RowGroups()
    for shard in [*range(len(alone)), *rng.permutation(len(alone)).tolist()]:
        chunks = [parse(chunk, manifest) for chunk in read_chunks(manifest, manifest.shards[shard], groups)]
        assert [pair for one in chunks for pair in zip(one.ids, one.texts, strict=True)] == alone[shard]
        assert all(len(one.ids) <= CHUNK_ROWS for one in chunks)
    groups.close()


def test_a_row_group_is_read_once_by_who_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"text": [f"{at}" for at in range(50_000)]}), tmp_path / "a.parquet")
    manifest, seen = plan([tmp_path], shard_rows=3000), list[int]()
    whole = parquet.ParquetFile.iter_batches

    def count(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in whole(self, *arguments, **options):
            seen.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", count)
    groups = RowGroups()
    rows = [chunk.data.num_rows for shard in manifest.shards for chunk in read_chunks(manifest, shard, groups)]
    assert sum(rows) == sum(seen) == 50_000
    assert len(rows_of(manifest)) > 10
    assert sum(seen) > 3 * 50_000  # each shard by itself


@settings(max_examples=60)
@given(rows=FIELDS, size=st.integers(1, 40), ending=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_records_of_csv_are_those_of_the_csv_module(rows: list[list[str]], size: int, ending: str, last: bool) -> None:
    sink = io.StringIO(newline="")
    csv.writer(sink, lineterminator=ending, quoting=csv.QUOTE_ALL).writerows(rows)
    data = sink.getvalue().encode()
    data = data if last else data.removesuffix(b"\n").removesuffix(b"\r")
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    parts = list(whole_records(blocks, "csv"))
    assert b"".join(part for part, _ in parts) == data
    records = [record for part, _ in parts for record in split(part, "csv")]
    assert sum(count for _, count in parts) == len(records)
    assert [csv_fields(record) for record in records] == rows


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_texts_and_ids_of_any_type_of_string(tmp_path: Path, kind: Any) -> None:
    """pandas writes categories as dictionaries, and Polars writes views."""
    column = pa.array(["the cat", None, "caf\u00e9", "the cat"]).cast(
        pa.binary() if kind == pa.binary() else pa.string()
    )
    parquet.write_table(pa.table({"text": column.cast(kind), "name": column.cast(kind)}), tmp_path / "a.parquet")
    (shard,) = rows_of(plan([tmp_path], id_column="name"))
    assert shard == [("the cat", "the cat"), (None, None), ("caf\u00e9", "caf\u00e9"), ("the cat", "the cat")]


def test_lines_are_texts_whatever_the_column_is_called(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    write_lines(tmp_path / "b.jsonl", [{"body": "three"}, {"text": "no body"}])
    manifest = plan([tmp_path / "a.txt", tmp_path / "b.jsonl"], columns=("body",))
    assert [pair for shard in rows_of(manifest) for pair in shard] == [(0, "one"), (1, "two"), (2, "three"), (3, None)]


def test_many_small_inputs_share_a_shard(tmp_path: Path) -> None:
    for at in range(25):
        (tmp_path / f"{at:02d}.txt").write_text("a\n" * (1 + at % 3), encoding="utf-8")
    manifest = plan([tmp_path], shard_rows=10)
    sizes = [manifest.shard_rows(shard) for shard in range(len(manifest.shards))]
    assert sum(sizes) == manifest.rows
    assert max(sizes) <= 10
    assert min(sizes[:-1]) > 10 - 3


@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 57])
def test_text_files_are_cut_between_rows(tmp_path: Path, count: int, ending: str) -> None:
    lines = [f"row {at}" for at in range(count)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + ending, encoding="utf-8")
    (tmp_path / "b.txt").write_text("more\nlines", encoding="utf-8")
    manifest = plan([tmp_path / "a.txt", tmp_path / "b.txt"])
    actual = rows_of(manifest)
    assert [pair for shard in actual for pair in shard] == list(enumerate([*lines, "more", "lines"]))
    assert [len(shard) for shard in actual] == [manifest.shard_rows(at) for at in range(len(actual))]
    assert max(len(shard) for shard in actual) <= 10
    assert manifest.rows == count + 2


def test_small_files_share_shards_and_large_row_groups_are_cut(tmp_path: Path) -> None:
    for at in range(5):
        parquet.write_table(pa.table({"text": [f"{at}.{row}" for row in range(4)]}), tmp_path / f"a{at}.parquet")
    large = pa.table({"text": [f"large {row}" for row in range(3000)], "key": list(range(3000))})
    parquet.write_table(large, tmp_path / "b.parquet", row_group_size=1500)
    manifest = plan([tmp_path], shard_rows=8)
    assert [manifest.shard_rows(at) for at in range(3)] == [8, 8, 4]
    values = [text for shard in rows_of(manifest) for _, text in shard]
    assert values == [f"{at}.{row}" for at in range(5) for row in range(4)] + large.column("text").to_pylist()
    keyed = plan([tmp_path / "b.parquet"], shard_rows=1100, id_column="key")
    assert CHUNK_ROWS < 1100
    assert [keyed.shard_rows(at) for at in range(len(keyed.shards))] == [1500, 1500]
    assert [key for shard in rows_of(keyed) for key, _ in shard] == list(range(3000))


def test_hidden_files_of_a_folder_and_other_kinds_are_left_alone(tmp_path: Path) -> None:
    for name in ("b/two.txt", "a/one.txt", ".hidden.txt", "_SUCCESS.txt", "_old/x.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    manifest = plan([tmp_path])
    assert [text for shard in rows_of(manifest) for _, text in shard] == ["a/one.txt", "b/two.txt"]


def test_suffixes_may_be_in_upper_case(tmp_path: Path) -> None:
    (tmp_path / "a.TXT").write_text("one\n", encoding="utf-8")
    (tmp_path / "b.Csv").write_text("text\ntwo\n", encoding="utf-8")
    write_lines(tmp_path / "c.NDJSON", [{"text": "three"}])
    parquet.write_table(pa.table({"text": ["four"]}), tmp_path / "d.Parquet")
    wanted = ["one", "two", "three", "four"]
    for sources in ([tmp_path], sorted(tmp_path.iterdir())):
        assert [text for shard in rows_of(plan(sources)) for _, text in shard] == wanted


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,key\na,b\n", encoding="utf-8")
    manifest = plan([tmp_path / "a.csv"], id_column="key")
    write_manifest(Location.of(str(tmp_path)), manifest)
    again = read_manifest(Location.of(str(tmp_path)))
    assert again == manifest
    assert again.digest == manifest.digest
    assert manifest.id_type == "string"


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("table", [False, True])
def test_tokens_are_the_library_s(
    tmp_path: Path, packed_metadata: dict[str, Any], pairs: bool, table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not table:
        monkeypatch.setattr("padfree.runtime.text.encoder.WordPieces.of", lambda _: None)
    some, most = texts(300, most=40), 24
    rows = [{"text": text, "other": other} for text, other in zip(some, reversed(some), strict=True)]
    write_lines(tmp_path / "in.jsonl", [*rows, {"text": "☃ naïve", "other": "x"}])
    columns = ("text", "other") if pairs else ("text",)
    manifest = plan([tmp_path / "in.jsonl"], columns=columns, max_length=most, shard_rows=1000)
    tokens = TextTokens(manifest, TOKENIZER, TextInputs(parse_metadata(packed_metadata, "m"), "m"))
    (chunk,) = read_chunks(manifest, manifest.shards[0], RowGroups())
    actual = tokens.read(chunk)
    library = read_tokenizer(TOKENIZER)
    wanted = [tuple(json.loads(line)[name] for name in columns) for line in chunk.data.splitlines()]
    whole = [len(library.encode(*row)) for row in wanted]
    library.enable_truncation(most)
    encodings = [library.encode(*row) for row in wanted]
    assert actual.seq_lens.tolist() == [len(one) for one in encodings]
    assert actual.columns["input_ids"].tolist() == [value for one in encodings for value in one.ids]
    if pairs:
        assert actual.columns["token_type_ids"].tolist() == [value for one in encodings for value in one.type_ids]
    else:
        assert list(actual.columns) == ["input_ids"]  # the other inputs are zeros
    assert actual.cut == sum(length > most for length in whole)
    assert 0 < actual.cut < len(rows)
    assert np.array(actual.ids).tolist() == list(range(len(rows) + 1))


def test_tokens_are_made_by_the_tokenizer_of_the_manifest_alone(
    tmp_path: Path, packed_metadata: dict[str, Any]
) -> None:
    write_lines(tmp_path / "in.jsonl", [{"text": "a cat"}])
    manifest = plan([tmp_path / "in.jsonl"])
    other = tmp_path / "tokenizer.json"
    other.write_bytes(TOKENIZER.read_bytes() + b"\n")  # the library reads this file, too
    with pytest.raises(BulkError, match="not the file that the result was begun with"):
        TextTokens(manifest, other, TextInputs(parse_metadata(packed_metadata, "m"), "m"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("query", "document"), ("query", "document")),
        (("id", "text", "text_pair"), ("text", "text_pair")),
        (("sentence1", "sentence2"), ("sentence1", "sentence2")),
        (("query", "text"), ("query", "text")),
        (("a", "b"), ("query", "text")),
    ],
)
def test_pairs_are_found_as_inputs_spell_them(
    tmp_path: Path, names: tuple[str, ...], expected: tuple[str, str]
) -> None:
    row = dict.fromkeys(names, "x")
    write_lines(tmp_path / "in.jsonl", [row])
    (tmp_path / "in.csv").write_text(",".join(names) + "\n", encoding="utf-8")
    parquet.write_table(pa.table({name: ["x"] for name in names}), tmp_path / "in.parquet")
    for name in ("in.jsonl", "in.csv", "in.parquet"):
        assert pair_columns([str(tmp_path / name)]) == expected
    (tmp_path / "empty.csv").touch()
    assert pair_columns([str(tmp_path / "empty.csv"), str(tmp_path / "in.csv")]) == expected


def test_a_file_without_rows_says_nothing_of_ids(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    write_lines(tmp_path / "b.jsonl", [{"key": 7, "text": "a cat"}])
    manifest = plan([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], id_column="key")
    assert (manifest.id_type, [file.rows for file in manifest.inputs]) == ("int64", [0, 1])


@pytest.mark.parametrize(
    ("query", "document", "expected"),
    [
        ("text", None, ("text", "text_pair")),
        ("query", None, ("query", "text")),
        (None, "text", ("query", "text")),
        (None, "text_pair", ("text", "text_pair")),
        ("a", "b", ("a", "b")),
    ],
)
def test_the_other_column_of_a_pair_is_found_as_inputs_spell_it(
    tmp_path: Path, query: str | None, document: str | None, expected: tuple[str, str]
) -> None:
    """Where it was always 'text', --query text compared every text with itself."""
    write_lines(tmp_path / "in.jsonl", [{"query": "a", "text": "b", "text_pair": "c"}])
    assert pair_columns([str(tmp_path)], query, document) == expected


@pytest.mark.parametrize(
    ("query", "document", "message"),
    [
        (
            "text",
            None,
            "--query text: which column has the other texts is not clear from text, other; name it with --d",
        ),
        (None, "other", "--document other: which column has the other texts is not clear from text, other; name it"),
        ("text", "text", "--query text and --document text: are one column; name two"),
    ],
)
def test_pairs_of_one_column_are_refused(tmp_path: Path, query: str | None, document: str | None, message: str) -> None:
    write_lines(tmp_path / "in.jsonl", [{"text": "b", "other": "c"}])
    with pytest.raises(BulkError, match=message):
        pair_columns([str(tmp_path)], query, document)


@pytest.mark.parametrize("asks", [False, True])
def test_a_process_that_makes_tokens_ends_quietly_where_nobody_waits(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, whoever asked for tokens may be gone before they are made."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr("padfree.bulk.reading.tokens.die_with_parent", lambda: None)
    monkeypatch.setattr(
        "padfree.bulk.reading.tokens.TextTokens", lambda: SimpleNamespace(read=lambda chunk: f"tokens of {chunk}")
    )
    ours, theirs = multiprocessing.Pipe()
    if asks:
        ours.send("a chunk")
    ours.close()
    _main(theirs)
