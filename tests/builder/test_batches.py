# SPDX-License-Identifier: Apache-2.0
"""Batches from files, and results to files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import BuildError
from padfree.builder.array_files import write_results
from padfree.builder.batches import TextOptions, read_batch, read_text_batch, read_text_rows
from padfree.contract.metadata import Metadata
from padfree.contract.texts import PAIRS, SENTENCES, TOKENS, TextInfo
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.texts import read_tokenizer

from tests.support.folders import write_small_tokenizer


@pytest.fixture
def metadata(packed_metadata: dict[str, Any]) -> Metadata:
    return parse_metadata(packed_metadata, "test")


def as_lists(request: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
    return {name: [list(map(int, row)) for row in rows] for name, rows in request.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"input_ids": [1, 2]}\n\n{"input_ids": []}\n', {"input_ids": [[1, 2], []]}),
        ("[1, 2]\n[3]", {"input_ids": [[1, 2], [3]]}),
        ('{"input_ids": [1], "token_type_ids": [0]}', {"input_ids": [[1]], "token_type_ids": [[0]]}),
        ("", {"input_ids": []}),
    ],
)
def test_json_lines(metadata: Metadata, tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(text)
    assert read_batch(path, metadata) == expected


@pytest.mark.parametrize("name", ["batch.ndjson", "BATCH.JSONL"])
def test_json_lines_by_other_names(metadata: Metadata, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("[1, 2]\n[3]")
    assert read_batch(path, metadata) == {"input_ids": [[1, 2], [3]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]\n{", "line 2: not JSON"),
        ("3", "line 1: '3', allowed: an object or a list of ids"),
        ('{"input_ids": [1]}\n[2]', "entry 2: has [''], entry 1 has ['input_ids']"),
        ('{"text": "hello"}', "texts need a tokenizer"),
        ('[1]\n[2]\n{"text": "a"}\n{"text": "b"}', "line 3 holds a text, line 1 does not; write a text in every line"),
        ('{"text": "a"}\n\n{"input_ids": [1]}', "line 1 holds a text, line 3 does not; write a text in every line"),
    ],
)
def test_json_lines_that_are_refused(metadata: Metadata, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(text)
    with pytest.raises(BuildError) as caught:
        read_batch(path, metadata)
    assert message in str(caught.value)


def test_packed_arrays(metadata: Metadata, tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, input_ids=np.array([1, 2, 3]), seq_lens=np.array([2, 0, 1]))
    assert as_lists(read_batch(path, metadata)) == {"input_ids": [[1, 2], [], [3]]}


def test_grids_keep_what_the_mask_keeps(metadata: Metadata, tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, input_ids=np.array([[0, 1, 2], [3, 9, 4]]), attention_mask=np.array([[0, 1, 1], [1, 0, 1]]))
    assert as_lists(read_batch(path, metadata)) == {"input_ids": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"input_ids": [1, 2], "seq_lens": [1]}, "'input_ids' has shape [2], but seq_lens add up to 1"),
        ({"input_ids": [1, 2], "seq_lens": 2}, "seq_lens is int64 [2] of shape [], allowed: integers [B], 0 or more"),
        (
            {"input_ids": [1, 2], "seq_lens": [3, -1]},
            "seq_lens is int64 [3, -1] of shape [2], allowed: integers [B], 0 or more",
        ),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "'input_ids' has shape [1, 2], attention_mask has [1, 1]"),
        ({"input_ids": [1]}, "neither seq_lens (for packed tokens [T]) nor attention_mask"),
    ],
)
def test_arrays_that_are_refused(metadata: Metadata, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, **arrays)
    with pytest.raises(BuildError) as caught:
        read_batch(path, metadata)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("batch.xlsx", b"", "'.xlsx', allowed: .parquet, .jsonl, .ndjson, .csv, .txt, .npz; write one of them"),
        ("texts.JSONL.gz", b"", "'.gz', allowed: .parquet, .jsonl, .ndjson, .csv, .txt, .npz; unpack it first"),
        ("batch.npz", b"no archive", "not an .npz file of plain arrays"),
        ("batch.jsonl", b"\xff\xfe", "cannot be read"),
    ],
)
def test_files_that_are_refused(metadata: Metadata, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BuildError) as caught:
        read_batch(path, metadata)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/63", "/proc/self/fd/0", "pipe"])
def test_streams_are_no_files(metadata: Metadata, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for read in (read_batch, read_text_batch):
        with pytest.raises(BuildError, match=f"{name}: is a stream, and .*; save it, as texts.txt, and pass that"):
            read(Path(name), metadata)


def test_compressed_texts_are_named_as_such(metadata: Metadata, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"texts\.jsonl\.gz: is compressed; unpack it first"):
        read_text_batch(tmp_path / "texts.jsonl.gz", metadata)


@pytest.mark.parametrize("read", [read_batch, read_text_batch])
def test_other_separators_than_commas_are_named(metadata: Metadata, tmp_path: Path, read: Callable[..., Any]) -> None:
    (tmp_path / "texts.csv").write_text("id;text\n1;a cat\n", encoding="utf-8")
    with pytest.raises(BuildError, match="first line is one column, 'id;text'; separate columns with commas, not semi"):
        read(tmp_path / "texts.csv", metadata)


def test_a_missing_file_is_named(metadata: Metadata, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"nothing\.jsonl: cannot be read \(No such file"):
        read_batch(tmp_path / "nothing.jsonl", metadata)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 1, "b": 2, "[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.enable_padding()
    words.enable_truncation(3)
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    return path


def test_texts_are_neither_padded_nor_cut(metadata: Metadata, tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a b a b a\nb\n")
    request = read_batch(path, metadata, TextOptions(tokenizer))
    assert request == {"input_ids": [[1, 2, 1, 2, 1], [2]], "token_type_ids": [[0] * 5, [0]]}


def test_texts_are_cut_to_the_positions_on_demand(metadata: Metadata, tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text('{"text": "' + "a " * 20 + '"}')
    assert len(read_batch(path, metadata, TextOptions(tokenizer, truncate=True))["input_ids"][0]) == 16
    path.write_text('{"text": "a"}\n{"text": "' + "a " * 20 + '"}')
    with pytest.raises(BuildError, match="text 2 has 20 tokens, the model takes 16; cut texts with --truncate"):
        read_batch(path, metadata, TextOptions(tokenizer))


def test_a_file_that_is_no_tokenizer(metadata: Metadata, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a")
    for name, message in (("texts.txt", "not a tokenizer file"), ("none.json", "no such tokenizer")):
        with pytest.raises(BuildError, match=message):
            read_batch(path, metadata, TextOptions(tmp_path / name))


def test_results_are_packed_with_their_lengths(metadata: Metadata, tmp_path: Path) -> None:
    results = {
        "hidden": [np.ones((2, 2)), np.zeros((0, 2)), np.full((1, 2), 3.0)],
        "lengths": [np.array([2.0]), np.array([0.0]), np.array([1.0])],
    }
    write_results(tmp_path / "out.npz", results, metadata)
    with np.load(tmp_path / "out.npz") as file:
        assert file["hidden"].tolist() == [[1, 1], [1, 1], [3, 3]]
        assert file["seq_lens"].tolist() == [2, 0, 1]
        assert file["lengths"].tolist() == [[2], [0], [1]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text": "word1", "text_pair": "word2"}', ("word1", "word2")),
        ('{"query": "word1", "document": "word2"}', ("word1", "word2")),
        ('{"query": "word1", "text": "word2", "id": 3}', ("word1", "word2")),
        ('{"sentence1": "word1", "sentence2": "word2"}', ("word1", "word2")),
        ('{"premise": "word1", "hypothesis": "word2"}', ("word1", "word2")),
        ('["word1", "word2"]', ("word1", "word2")),
    ],
)
def test_pairs_in_any_usual_spelling(metadata: Metadata, tmp_path: Path, line: str, expected: Any) -> None:
    pairs = replace(metadata, text=TextInfo(PAIRS))
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{line}\n\n{line}\n")
    actual = read_batch(path, pairs, TextOptions(tokenizer=write_small_tokenizer(tmp_path / "tokenizer.json", 30)))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert as_lists(actual)["input_ids"] == 2 * [tokenizer.encode(*expected).ids]
    assert as_lists(actual)["token_type_ids"] == 2 * [tokenizer.encode(*expected).type_ids]


@pytest.mark.parametrize(
    ("lines", "task", "message"),
    [
        ('{"text": "word1"}', PAIRS, "line 1: has text, and the model scores pairs; name two texts text/text_pair"),
        ('{"text": 3}', SENTENCES, "line 1: 'text' is 3, allowed: a text"),
        ('{"text": null}', SENTENCES, "line 1: 'text' is None, allowed: a text"),
        ('["word1", "word2"]', SENTENCES, "reads texts by themselves, and a pair was given; leave the second text out"),
        ('["word1", "word2"]', TOKENS, "reads texts by themselves, and a pair was given; leave the second text out"),
        ('["word1"]', SENTENCES, "line 1: a list of 1 texts, allowed: a pair"),
    ],
)
def test_lines_that_are_no_texts(metadata: Metadata, tmp_path: Path, lines: str, task: str, message: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(lines)
    options = TextOptions(tokenizer=write_small_tokenizer(tmp_path / "tokenizer.json", 30))
    with pytest.raises(BuildError, match=message):
        read_batch(path, replace(metadata, text=TextInfo(task)), options)


def test_single_texts_of_a_model_that_scores_pairs(metadata: Metadata, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a\n")
    options = TextOptions(tokenizer=write_small_tokenizer(tmp_path / "tokenizer.json", 30))
    with pytest.raises(BuildError, match="a text by itself, and the model scores pairs"):
        read_batch(path, replace(metadata, text=TextInfo(PAIRS)), options)


def test_models_of_vectors_take_the_text_of_a_row(metadata: Metadata, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"query": "word1", "text": "word2"}\n')
    options = TextOptions(tokenizer=write_small_tokenizer(tmp_path / "tokenizer.json", 30))
    actual = read_batch(path, replace(metadata, text=TextInfo(SENTENCES)), options)
    assert actual["input_ids"] == [read_tokenizer(tmp_path / "tokenizer.json").encode("word2").ids]


def test_files_may_begin_with_a_mark_of_utf8(metadata: Metadata, tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "batch.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input_ids": [1, 2]}\r\n')
    assert as_lists(read_batch(path, metadata))["input_ids"] == [[1, 2]]
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_text_rows(path, None) == ["one", "two"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_line_feeds_end_lines(tmp_path: Path, character: str) -> None:
    """As for padfree embed: texts keep what Unicode calls a line's end, and answers stay beside their lines."""
    texts = [f"word1{character}word2", "", "word3"]
    path = tmp_path / "texts.txt"
    path.write_bytes("\n".join(texts).encode() + b"\n")
    assert read_text_rows(path, None) == texts
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_bytes("\r\n".join(lines).encode())
    assert read_text_rows(path, None) == texts
