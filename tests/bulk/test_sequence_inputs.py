# SPDX-License-Identifier: Apache-2.0
"""`padfree embed` with models that read a number with each text's tokens: columns have the inputs' names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from padfree.builder.cli import main
from padfree.onnx_tools import rewrite, save_model
from pyarrow import parquet
from tokenizers import Tokenizer

from tests.support.sequence_models import alone, rows_of, with_rows, write_tokenizer

COUNT = 24
ROWS = rows_of(COUNT)
TEXTS = [" ".join("abcdefgh"[: 1 + at % 8]) for at in range(COUNT)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    save_model(rewrite(with_rows(), verify=False).model, path)
    return path


def arguments(tmp_path: Path, model: Path, source: Path) -> list[str]:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    options = ["--engine", str(model), "--tokenizer", str(tokenizer), "--head", "vector", "--shard-rows", "10"]
    return ["embed", "--input", str(source), "-o", str(tmp_path / "out"), *options]


def vectors(tmp_path: Path) -> dict[int, np.ndarray]:
    """The vectors that were written, by row number."""
    parts = [parquet.read_table(file) for file in sorted((tmp_path / "out").glob("*.parquet"))]
    table = pa.concat_tables(parts)
    name = next(name for name in table.column_names if name != "id")
    return dict(zip(table["id"].to_pylist(), map(np.asarray, table[name].to_pylist()), strict=True))


def expected_rows() -> list[np.ndarray]:
    ids = [np.asarray([ord(letter) - ord("a") for letter in text.split()]) for text in TEXTS]
    return [row["vector"] for row in alone(with_rows(), ids, ROWS)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_reach_the_model(kind: str, model: Path, tmp_path: Path) -> None:
    source = tmp_path / f"in.{kind}"
    rows = [{"text": text, **{name: ROWS[name][at].tolist() for name in ROWS}} for at, text in enumerate(TEXTS)]
    if kind == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), source)
    command = arguments(tmp_path, model, source)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a b").ids == [0, 1]
    assert main([*command, "--verify"]) == 0
    actual = vectors(tmp_path)
    for at, row in enumerate(expected_rows()):
        np.testing.assert_allclose(actual[at], row, atol=2e-5)


def test_rows_whose_values_do_not_fit_are_bad_rows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": text, **{name: ROWS[name][at].tolist() for name in ROWS}} for at, text in enumerate(TEXTS)]
    rows[3]["language"] = 5
    del rows[4]["features"]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(arguments(tmp_path, model, source)) == 0
    assert "rows without a result: 2 (value)" in capsys.readouterr().out
    actual = vectors(tmp_path)
    assert actual.keys() == set(range(COUNT)) - {3, 4}
    np.testing.assert_allclose(actual[5], expected_rows()[5], atol=2e-5)


def test_plain_texts_have_no_columns(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(TEXTS))
    assert main(arguments(tmp_path, model, source)) == 1
    assert "language" in " ".join(capsys.readouterr().err.split())
