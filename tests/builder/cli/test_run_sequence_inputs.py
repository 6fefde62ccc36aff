# SPDX-License-Identifier: Apache-2.0
"""`padfree run` on models that read a number per sequence: columns of rows with texts, with ids, and in .npz."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.onnx_tools import rewrite, save_model
from tokenizers import Tokenizer

from tests.support.sequence_models import alone, rows_of, with_rows, write_tokenizer

TEXTS = ["a b c", "d", "e f"]
ROWS = rows_of(len(TEXTS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    save_model(rewrite(with_rows(), verify=False).model, path)
    return path


def run(model: Path, source: Path, *options: str) -> tuple[int, Path]:
    output = source.with_name("out.npz")
    return main(["run", str(model), "--input", str(source), "-o", str(output), *options]), output


def lines(first: list[dict[str, object]]) -> str:
    """JSON lines: the given objects, each with its values from ROWS added."""
    rows = [{name: values[at].tolist() for name, values in ROWS.items()} for at in range(len(TEXTS))]
    return "".join(json.dumps({**one, **row}) + "\n" for one, row in zip(first, rows, strict=True))


def ids_of(tokenizer: Path) -> list[np.ndarray]:
    read = Tokenizer.from_file(str(tokenizer))
    return [np.asarray(read.encode(text).ids) for text in TEXTS]


def assert_right(output: Path, tokenizer: Path, *, ahead: int = 0) -> None:
    """Checks that the vectors are those of TEXTS, after `ahead` others."""
    wanted = alone(with_rows(), ids_of(tokenizer), ROWS)
    with np.load(output) as actual:
        np.testing.assert_allclose(actual["vector"][ahead:], [row["vector"] for row in wanted], atol=2e-5)


@pytest.mark.parametrize("kind", ["texts", "ids", "packed", "padded"])
def test_every_kind_of_input_can_hold_them(kind: str, model: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    ids, source = ids_of(tokenizer), tmp_path / "in.jsonl"
    lens = np.asarray([len(row) for row in ids])
    if kind == "texts":
        source.write_text(lines([{"text": text} for text in TEXTS]))
    elif kind == "ids":
        source.write_text(lines([{"input_ids": row.tolist()} for row in ids]))
    else:
        source = tmp_path / "in.npz"
        grid = np.asarray([np.pad(row, (0, lens.max() - len(row))) for row in ids])
        packed = {"input_ids": np.concatenate(ids), "seq_lens": lens}
        padded = {"input_ids": grid, "attention_mask": (np.arange(lens.max()) < lens[:, None]).astype(np.int64)}
        np.savez(source, **(packed if kind == "packed" else padded), **ROWS)
    code, output = run(model, source, *(["--tokenizer", str(tokenizer)] if kind == "texts" else []))
    assert code == 0
    assert_right(output, tokenizer)


def test_a_blank_text_has_its_own_values(model: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    source = tmp_path / "in.jsonl"
    blank = json.dumps({"text": " ", "language": 4, "source": [0], "features": [0, 0, 0], "row_id": 0})
    source.write_text(f"{blank}\n{lines([{'text': text} for text in TEXTS])}")
    code, output = run(model, source, "--tokenizer", str(tokenizer))
    assert code == 0
    assert_right(output, tokenizer, ahead=1)


def test_a_line_without_one_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    source = tmp_path / "in.jsonl"
    first, *rest = lines([{"text": text} for text in TEXTS]).splitlines(keepends=True)
    source.write_text(first + "".join(line.replace('"language"', '"tongue"') for line in rest))
    assert run(model, source, "--tokenizer", str(tokenizer))[0] == 1
    assert "line 2: has no 'language', which the model reads of every text" in " ".join(capsys.readouterr().err.split())
