# SPDX-License-Identifier: Apache-2.0
"""The data of comparisons: generated batches, texts, token files, Polygraphy's files and loader scripts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.builder.compare.batches import HOLES, LEFT, PREFIX
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.builder.compare.report.report import Report
from padfree.builder.demo.demo import DEMO_DATA
from polygraphy.json import save_json

MODEL = DEMO_DATA / "bert_tiny.onnx"
ROWS = [[5, 6, 7, 8], [9], [10, 11]]


def run(file: Path | None, interface: str = "packed", **options: object) -> Report:
    return compare(MODEL, [], CompareOptions(interface=interface, data=DataOptions(file, **options)))  # type: ignore[arg-type]


def masks(report: Report) -> set[str]:
    return {item.mask for item in report.batches}


@pytest.mark.slow
def test_generated_batches_have_all_length_classes_and_the_masks_that_fit() -> None:
    packed, padded = run(None), run(None, "padded")
    assert packed.passed
    assert padded.passed
    assert masks(packed) == {PREFIX}
    assert masks(padded) == {PREFIX, LEFT, HOLES}
    assert {"1", "2-16", "17-64", "65-128", "129-256", "257-512"} == set(packed.runners[0].outputs[0].classes)
    assert run(None, seed=1).batches != packed.batches


def test_texts(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join((DEMO_DATA / "texts.txt").read_text().splitlines()[:20]))
    report = run(texts, tokenizer=DEMO_DATA / "tokenizer.json", truncate=True)
    assert report.passed
    assert [item.sequences for item in report.batches] == [16, 4]


def test_token_lists(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"input_ids": ROWS}))
    report = run(path)
    assert report.passed
    assert [(item.sequences, item.tokens, item.padded_tokens) for item in report.batches] == [(3, 7, 12)]


def test_grids_keep_their_masks_and_packed_models_get_them_right_padded(tmp_path: Path) -> None:
    path = tmp_path / "grids.npz"
    mask = np.array([[0, 1, 1], [1, 0, 1]])
    np.savez(path, input_ids=mask * 7, token_type_ids=mask * 0, attention_mask=mask)
    assert masks(run(path, "padded")) == {HOLES}
    assert masks(run(path)) == {PREFIX}


def test_polygraphys_files_and_scripts(tmp_path: Path) -> None:
    feeds = {"input_ids": np.full((2, 5), 9), "attention_mask": np.ones((2, 5), np.int64)}
    feeds["token_type_ids"] = np.zeros((2, 5), np.int64)
    saved, script = tmp_path / "inputs.json", tmp_path / "loader.py"
    save_json([feeds], str(saved))
    script.write_text(
        f"from polygraphy.json import load_json\ndef load_data():\n    yield from load_json({str(saved)!r})\n"
    )
    for path in (saved, script):
        report = run(path)
        assert report.passed
        assert [item.tokens for item in report.batches] == [10]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ids": ROWS}, "the model's token inputs are input_ids, token_type_ids"),
        ({"input_ids": []}, "holds no sequence"),
        ({"input_ids": ROWS, "token_type_ids": [[0]]}, "'token_type_ids' has other lengths"),
        ([{"input_ids": [[1]]}], "input 'token_type_ids' is missing"),
    ],
)
def test_other_content_is_refused(
    tmp_path: Path, content: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(content))
    assert main(["compare", str(MODEL), "--data", str(path)]) == 1
    assert message in capsys.readouterr().err
