# SPDX-License-Identifier: Apache-2.0
"""A tokenizer and a model that do not belong together are refused before they give any answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError
from padfree.builder.cli import main
from padfree.builder.folders.folder import read_folder
from padfree.builder.folders.tokenizer import folder_tokenizer, tokenizer_notes
from padfree.builder.tokenization import load_tokenizer
from padfree.contract.texts import CLASSES, PAIRS, SENTENCES, TextInfo
from padfree.runtime import Metadata
from padfree.runtime.plan_files import parse_metadata
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from tests.support.folders import write_folder

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
ROWS = 100
Describe = Callable[..., Metadata]
ModelWriter = Callable[..., Path]


def write(folder: Path, first: tuple[str, ...] = BERT, *, size: int = 98, added: int = 0, second_type: int = 1) -> Path:
    """Writes a tokenizer.json of `size` words and `added` tokens, which frames texts as BERT or RoBERTa does."""
    words = [*first, *(f"word{number}" for number in range(size - len(first)))]
    begin, end = ("[CLS]", "[SEP]") if "[CLS]" in first else ("<s>", "</s>")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="word0"))
    tokenizer.add_special_tokens(list(first))
    tokenizer.add_tokens([AddedToken(f"<extra{number}>") for number in range(added)])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:{second_type} {end}:{second_type}",
        special_tokens=[(token, words.index(token)) for token in (begin, end)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture
def describe(packed_metadata: dict[str, Any]) -> Describe:
    """Metadata of a model whose table has ROWS rows, with excluded ids and types as given."""

    def make(*, rows: int | None = ROWS, types: int = 2, excluded: tuple[int, ...] = ()) -> Metadata:
        raw = json.loads(json.dumps(packed_metadata))
        raw["inputs"][0]["limit"], raw["inputs"][1]["limit"] = rows, types
        raw["coverage"]["excluded_ids"] = {"input_ids": list(excluded)}
        return parse_metadata(raw, "the model")

    return make


@pytest.mark.parametrize(("size", "added"), [(100, 0), (97, 3), (92, 0)])
def test_fewer_tokens_than_rows_are_legitimate(
    describe: Describe, tmp_path: Path, size: int, added: int, caplog: pytest.LogCaptureFixture
) -> None:
    load_tokenizer(write(tmp_path, size=size, added=added), describe())
    assert not caplog.records
    load_tokenizer(write(tmp_path, size=300), describe(rows=None))


@pytest.mark.parametrize(("size", "added", "token"), [(101, 0, "word96"), (97, 4, "<extra3>")])
def test_more_tokens_than_rows(describe: Describe, tmp_path: Path, size: int, added: int, token: str) -> None:
    words = rf"ids up to 100 \('{token}'\), the model's 'input_ids' takes 0..99; pass the tokenizer.json that was saved"
    with pytest.raises(BuildError, match=words):
        load_tokenizer(write(tmp_path, size=size, added=added), describe())


def test_far_fewer_tokens_are_told(
    describe: Describe, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("padfree"), "propagate", True)
    load_tokenizer(write(tmp_path, size=50), describe())
    assert "the tokenizer has 50 tokens, the model's table 100 rows" in caplog.text


@pytest.mark.parametrize(
    ("task", "types", "told"),
    [(None, True, True), (PAIRS, True, True), (CLASSES, True, True), (SENTENCES, True, False), (PAIRS, False, False)],
)
def test_missing_token_types_are_told_where_pairs_need_them(
    task: str | None,
    types: bool,
    told: bool,
    describe: Describe,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("padfree"), "propagate", True)
    file = write(tmp_path)
    file.with_name("tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    actual = describe()
    inputs = actual.inputs if types else tuple(item for item in actual.inputs if item is not actual.types_input())
    metadata = replace(actual, text=None if task is None else TextInfo(task), inputs=inputs)
    load_tokenizer(file, metadata)
    assert ("gives no token types, as in transformers 5" in caplog.text) == told


@pytest.mark.parametrize(
    ("classes", "kinds", "told"),
    [
        ("BertForSequenceClassification", 2, True),
        ("BertForSequenceClassification", 1, False),
        ("BertForMaskedLM", 2, False),
    ],
)
def test_folders_tell_of_missing_token_types_where_pairs_need_them(
    classes: str, kinds: int, told: bool, tmp_path: Path
) -> None:
    config = {"architectures": [classes], "type_vocab_size": kinds, "id2label": {"0": "no", "1": "yes"}}
    folder = write_folder(tmp_path / "model", config=config)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    read = read_folder(folder)
    tokenizer = folder_tokenizer(read)
    assert tokenizer is not None
    notes = " ".join(tokenizer_notes(tokenizer, read))
    assert ("gives no token types, as in transformers 5" in notes) == told


def test_ids_that_the_model_takes_for_padding(describe: Describe, tmp_path: Path) -> None:
    """RoBERTa does not count its padding token, 1, in positions; BERT's tokenizer pads with 0."""
    load_tokenizer(write(tmp_path, ROBERTA, second_type=0), describe(excluded=(1,)))
    with pytest.raises(BuildError, match="the tokenizer pads with 0, the model takes 1 for padding"):
        load_tokenizer(write(tmp_path), describe(excluded=(1,)))
    for excluded, token in ((0, "<s>"), (2, "</s>")):
        with pytest.raises(BuildError, match=f"the tokenizer's '{token}' is {excluded}, .* takes for padding"):
            load_tokenizer(write(tmp_path, ROBERTA), describe(excluded=(excluded,)))
    unusual = write(tmp_path, ("<s>", "nothing", "</s>"), second_type=0)
    load_tokenizer(unusual, describe(excluded=(1,)))  # it is unknown which of its tokens is for padding
    padded = Tokenizer.from_file(str(unusual))
    padded.enable_padding(pad_id=7, pad_token="word4")
    padded.save(str(unusual))
    with pytest.raises(BuildError, match="the tokenizer pads with 7"):
        load_tokenizer(unusual, describe(excluded=(1,)))


def test_a_vocabulary_with_two_usual_padding_tokens(describe: Describe, tmp_path: Path) -> None:
    """MPNet's has BERT's words after its own special tokens and pads with one of its own; files need not say which."""
    file = write(tmp_path, ROBERTA, second_type=0)
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(["[PAD]"])
    tokenizer.save(str(file))
    load_tokenizer(file, describe(excluded=(1,)))
    with pytest.raises(BuildError, match=r"the tokenizer pads with \d+ or 1, the model takes 3 for padding"):
        load_tokenizer(file, describe(excluded=(3,)))


def test_token_types_that_the_model_does_not_have(describe: Describe, tmp_path: Path) -> None:
    load_tokenizer(write(tmp_path, ROBERTA, second_type=0), describe(types=1), pairs=True)
    load_tokenizer(write(tmp_path), describe(types=1))  # single texts have type 0
    words = r"gives pairs of texts the type 1, the model's 'token_type_ids' takes 0\.\.0"
    with pytest.raises(BuildError, match=words):
        load_tokenizer(write(tmp_path), describe(types=1), pairs=True)


def test_a_tokenizer_without_a_token_for_what_it_does_not_know(describe: Describe, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"x": 0}))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    load_tokenizer(tmp_path / "tokenizer.json", describe(), pairs=True)


@pytest.mark.parametrize("kind", ["texts.txt", "batch.jsonl"])
def test_run(packed_model: ModelWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    (tmp_path / kind).write_text("word1\n" if kind == "texts.txt" else '{"text": "word1"}\n')
    command = ["run", str(packed_model()), "--input", str(tmp_path / kind), "-o", str(tmp_path / "out.npz")]
    assert main([*command, "--tokenizer", str(write(tmp_path))]) == 0
    (tmp_path / "out.npz").unlink()
    assert main([*command, "--tokenizer", str(write(tmp_path, size=101))]) == 1
    assert "the tokenizer has ids up to 100" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_triton(packed_model: ModelWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tritonclient.grpc")
    command = ["triton", str(packed_model()), "-o", str(tmp_path / "models"), "--name", "bert", "--tokenizer"]
    assert main([*command, str(write(tmp_path, size=101))]) == 1
    assert "the tokenizer has ids up to 100" in capsys.readouterr().err
    assert main([*command, str(write(tmp_path)), "--max-length", "2"]) == 1
    assert "--max-length 2: the tokenizer puts 2 tokens of its own around a text" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
    assert main([*command, str(write(tmp_path))]) == 0
