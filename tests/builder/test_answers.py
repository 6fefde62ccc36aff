# SPDX-License-Identifier: Apache-2.0
"""`padfree run -o answers.jsonl` writes what padfree.Model gives for the same texts, one per line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import padfree
import pytest
from padfree.builder import cli
from padfree.runtime.text import TextEncoder

from tests.support.classifiers import small_folder
from tests.support.served_models import write_embedder, write_reranker

TEXTS = ["word1 word2  word3", "word50", ""]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path / "texts.jsonl"


@pytest.mark.parametrize("problem", ["", "multi_label_classification"])
def test_labels(problem: str, texts: Path, tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "model", "sequence", ("no", "maybe", "yes"), problem_type=problem or None)
    assert cli.main(["run", str(folder), "--input", str(texts), "-o", str(tmp_path / "out.jsonl")]) == 0
    with padfree.Model(folder) as model:
        actual = model.classify(TEXTS)
    for text, line, one in zip(TEXTS, lines_of(tmp_path / "out.jsonl"), actual, strict=True):
        wanted = {"text": text, "label": one.label, "score": one.score, "scores": dict(one.scores)}
        assert line == (wanted | {"labels": list(one.labels)} if problem else wanted)


@pytest.mark.parametrize("name", ["out.jsonl", "OUT.NDJSON"])
def test_words(name: str, tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "model", "token", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    arguments = [word for text in TEXTS for word in ("--text", text)]
    assert cli.main(["run", str(folder), *arguments, "-o", str(tmp_path / name)]) == 0
    with padfree.Model(folder) as model:
        actual = model.tag(TEXTS)
    assert any(actual)
    wanted = [
        {"text": text, "words": [asdict(word) for word in words]} for text, words in zip(TEXTS, actual, strict=True)
    ]
    assert lines_of(tmp_path / name) == wanted


@pytest.mark.parametrize("name", ["embedder.onnx", "EMBEDDER.ONNX"])
def test_vectors_with_a_prompt(name: str, texts: Path, tmp_path: Path) -> None:
    model = write_embedder(tmp_path / name)
    command = ["run", str(model), "--input", str(texts), "--prompt", "query", "-o", str(tmp_path / "out.jsonl")]
    assert cli.main(command) == 0
    with padfree.Model(model) as opened:
        wanted = opened.encode(TEXTS, prompt_name="query").tolist()
    assert [line["embedding"] for line in lines_of(tmp_path / "out.jsonl")] == wanted


def test_scores_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_reranker(tmp_path / "reranker.onnx")
    pair = ["--text", "rain", "--text-pair", "a cat", "--text", "rain", "--text-pair", "rain in the night"]
    assert cli.main(["run", str(model), *pair, "-o", str(tmp_path / "out.jsonl")]) == 0
    with padfree.Model(model) as opened:
        wanted = opened.scores([("rain", "a cat"), ("rain", "rain in the night")]).tolist()
    lines = lines_of(tmp_path / "out.jsonl")
    assert [line["score"] for line in lines] == wanted
    assert lines[0]["text_pair"] == "a cat"
    assert capsys.readouterr().out.startswith("2 pairs (rerank); wrote ")
    half = tmp_path / "half.jsonl"
    half.write_text('{"query": "rain", "text": "a cat"}\n{"query": "rain"}\n', encoding="utf-8")
    assert cli.main(["run", str(model), "--input", str(half), "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "half.jsonl, line 2: has query, and the model scores pairs; name two" in capsys.readouterr().err


def test_ids_have_no_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_embedder(tmp_path / "embedder.onnx")
    (tmp_path / "ids.jsonl").write_text("[1, 2, 3]\n")
    command = ["run", str(model), "--input", str(tmp_path / "ids.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert cli.main(command) == 1
    assert "ids.jsonl, line 1: holds no text, and only texts have answers to write" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_prompts_are_for_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_reranker(tmp_path / "reranker.onnx")
    pair = ["--text", "rain", "--text-pair", "a cat", "--prompt", "query"]
    assert cli.main(["run", str(model), *pair, "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "prompt" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_texts_are_tokenized_once(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_embedder(tmp_path / "embedder.onnx")
    calls, encode = list[list[Any]](), TextEncoder.encode

    def count(encoder: TextEncoder, batch: Any) -> Any:
        calls.append(list(batch))
        return encode(encoder, batch)

    monkeypatch.setattr(TextEncoder, "encode", count)
    for source in (["--input", str(texts)], ["--text", TEXTS[0]]):
        calls.clear()
        assert cli.main(["run", str(model), *source, "--prompt", "query", "-o", str(tmp_path / "out.jsonl")]) == 0
        assert len(calls) == 1


def test_a_text_that_is_too_long_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, long_text = write_embedder(tmp_path / "embedder.onnx"), " ".join(["word1"] * 900)
    (tmp_path / "texts.txt").write_text(f"word1\n{long_text}\n")
    assert cli.main(["run", str(model), "--input", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "o.jsonl")]) == 0
    assert "texts.txt: texts of more than 128 tokens that lost their ends: 1 of 2" in " ".join(
        capsys.readouterr().err.split()
    )
