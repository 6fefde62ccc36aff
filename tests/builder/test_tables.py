# SPDX-License-Identifier: Apache-2.0
"""`padfree run` gives the same for texts in columns of CSV and parquet files as for the texts themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from padfree.builder import BuildError
from padfree.builder.batches import TextOptions, read_batch, read_text_rows, read_texts
from padfree.builder.tables import read_table
from padfree.contract.installation import install_command
from padfree.runtime import Metadata

from tests.support.folders import TOKENIZER
from tests.support.served_models import write_model

SOME = ["the cat", "a dog runs over my house", 'one, with "quotes"', "two\nlines", ""]


def write_csv(path: Path, columns: dict[str, list[str]]) -> Path:
    """Writes CSV as spreadsheets do, with every field in quotes."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    lines = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    path.with_suffix(".csv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path.with_suffix(".csv")


def write_parquet(path: Path, columns: dict[str, list[str]]) -> Path:
    """Writes parquet as pandas does."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


both = pytest.mark.parametrize("write", [write_csv, write_parquet])
Write = Callable[[Path, dict[str, list[str]]], Path]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Metadata:
    from padfree.runtime import Session

    with Session(write_model(tmp_path_factory.mktemp("model") / "model.onnx")) as session:
        return session.metadata


@both
def test_other_columns_do_not_matter(write: Write, metadata: Metadata, tmp_path: Path) -> None:
    options = TextOptions(TOKENIZER)
    path = write(tmp_path / "in", {"id": [str(at) for at in range(len(SOME))], "text": SOME})
    actual, wanted = read_batch(path, metadata, options), read_texts(SOME, metadata, options)
    assert {name: [list(row) for row in rows] for name, rows in actual.items()} == {
        name: [list(row) for row in rows] for name, rows in wanted.items()
    }


@both
def test_texts_under_another_name_are_named(write: Write, metadata: Metadata, tmp_path: Path) -> None:
    path = write(tmp_path / "in", {"txt": ["a", "b"]})
    with pytest.raises(BuildError, match=r"line 1: 'txt' holds a text, and texts are read from 'text', .*; rename it$"):
        read_batch(path, metadata, TextOptions(TOKENIZER))
    path = write(tmp_path / "more", {"id": ["1", "2"], "body": ["a", "b"]})
    with pytest.raises(BuildError, match=r"line 1: 'id' and 'body' hold a text, .*; rename the one that is meant$"):
        read_batch(path, metadata, TextOptions(TOKENIZER))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short.csv", b"text,label\na\n", "line 2: has other fields than the first line, text, label; put texts"),
        ("long.csv", b"text\na, b\n", "line 2: has other fields than the first line, text; put texts with commas"),
        ("latin.csv", b"text\n\xff\n", "cannot be read"),
        ("twice.csv", b"text,text\na,b\n", "the first line names the column 'text' twice; rename one of them"),
        ("open.csv", b'text\n"a\n', "not CSV .*; write double quotes within quoted fields twice"),
        ("none.csv", None, "cannot be read"),
        ("none.parquet", None, "cannot be read"),
        ("no.parquet", b"no parquet", "cannot be read"),
    ],
)
def test_files_that_are_refused(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BuildError, match=message):
        read_table(tmp_path / name)


def test_pyarrow_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(BuildError) as caught:
        read_table(tmp_path / "in.parquet")
    assert f"parquet files need pyarrow: {install_command('bulk')}" in str(caught.value)


@both
def test_suffixes_may_be_in_upper_case(write: Write, metadata: Metadata, tmp_path: Path) -> None:
    path = write(tmp_path / "in", {"text": SOME})
    path = path.rename(path.with_suffix(path.suffix.upper()))
    options = TextOptions(TOKENIZER)
    actual, wanted = read_batch(path, metadata, options), read_texts(SOME, metadata, options)
    assert list(map(list, actual["input_ids"])) == list(map(list, wanted["input_ids"]))
    assert read_text_rows(path, None) == SOME


@both
def test_answers_are_of_the_same_texts(write: Write, tmp_path: Path) -> None:
    assert read_text_rows(write(tmp_path / "in", {"text": SOME}), None) == SOME


def test_fields_may_be_long(tmp_path: Path) -> None:
    """Python's csv takes 131,072 characters by default."""
    text = "the cat " * 20_000
    assert read_text_rows(write_csv(tmp_path / "in", {"text": [text]}), None) == [text]


def test_texts_may_be_bytes(tmp_path: Path) -> None:
    """Spark writes strings of older tables as binary columns, which padfree embed takes too."""
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "in.parquet"
    columns = {"text": pa.array([b"the cat", "caf\u00e9".encode()]), "image": pa.array([b"\xff", b"\xfe"])}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)
    assert read_text_rows(path, None) == ["the cat", "caf\u00e9"]
