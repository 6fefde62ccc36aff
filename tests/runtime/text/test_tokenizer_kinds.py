# SPDX-License-Identifier: Apache-2.0
"""Ids, types and cuts are those of transformers' AutoTokenizer, for every kind of tokenizer folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime.errors import SessionError
from padfree.runtime.text.classes import AS_SAVED, class_of
from padfree.runtime.text.encoder import TextEncoder
from padfree.runtime.text.tokenizer_file import read_tokenizer_file

from tests.support.tokenizer_answers import ANSWERS
from tests.support.tokenizer_kinds import KINDS, MOST, PAIRS, TEXTS, Kind, bert, bytes_of

EXPECTED: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))["kinds"]
KINDS_BY_NAME = {kind.name: kind for kind in KINDS}


def test_there_are_enough_kinds() -> None:
    assert {kind.name for kind in KINDS} == set(EXPECTED)
    assert len(KINDS) >= 40


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_as_auto_tokenizer(kind: Kind, tmp_path: Path) -> None:
    file = read_tokenizer_file(kind.write(tmp_path) / "tokenizer.json")
    for given, texts in (("texts", list(TEXTS)), ("pairs", list(PAIRS))):
        for suffix, most in (("", None), ("_cut", MOST)):
            expected = EXPECTED[kind.name][given + suffix]
            encoder = TextEncoder(
                file.tokenizer(), most, side=file.truncation_side, token_types=file.token_types is not False
            )
            found = encoder.encode(texts)
            ids = [row.tolist() for row in found.rows(found.ids)]
            assert ids == expected["input_ids"], given + suffix
            types = [row.tolist() for row in found.rows(found.types)]
            zeros = [[0] * len(row) for row in ids]
            assert types == expected.get("token_type_ids", zeros), given + suffix
            assert bool(file.token_types) == ("token_type_ids" in expected)
            if most is not None:
                whole = EXPECTED[kind.name][given]["input_ids"]
                assert found.cut.tolist() == [len(row) > most for row in whole]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split_special_tokens": True}, "'split_special_tokens' is true"),
        ({"truncation_side": "middle"}, "'truncation_side' is 'middle', allowed: right, left"),
        (
            {"tokenizer_class": "BertTokenizer", "do_lower_case": "yes"},
            "'do_lower_case' is 'yes', allowed: true or false",
        ),
        ({"model_input_names": "input_ids"}, "'model_input_names' is 'input_ids', allowed: a list of names"),
        ({"added_tokens_decoder": {"x": {}}}, "'added_tokens_decoder' is .*, allowed: an object of ids and tokens"),
    ],
)
def test_settings_that_are_not_followed(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = Kind("wrong", bert, settings).write(tmp_path)
    with pytest.raises(SessionError, match=words):
        read_tokenizer_file(folder / "tokenizer.json")


def test_a_class_whose_tokens_are_not_there(tmp_path: Path) -> None:
    """transformers adds ids for them that no model has a row for."""
    folder = Kind("other", bert, {"tokenizer_class": "RobertaTokenizer"}).write(tmp_path)
    file = read_tokenizer_file(folder / "tokenizer.json")
    assert "tokenizer_class is RobertaTokenizer, and tokenizer.json is none of that kind" in file.notes[0]
    assert file.tokenizer().encode("The cat").ids == bert().encode("The cat").ids


def test_tokens_that_the_model_has_no_row_for(tmp_path: Path) -> None:
    size = bert().get_vocab_size()
    folder = Kind("more", bert, {"tokenizer_class": "BertTokenizer", "extra_special_tokens": ["<ent>"]}).write(tmp_path)
    for rows, added in ((size, None), (size + 1, size)):
        found = read_tokenizer_file(folder / "tokenizer.json", rows=rows).tokenizer()
        assert found.token_to_id("<ent>") == added


def test_what_versions_differ_in_is_told(tmp_path: Path) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    for name, words in (
        ("words_add_eos", "[SEP]"),
        ("bert_padding_left", "pads on the left"),
    ):
        notes = read_tokenizer_file(kinds[name].write(tmp_path / name) / "tokenizer.json").notes
        assert any(words in note for note in notes), notes
    (note,) = read_tokenizer_file(kinds["words_generic"].write(tmp_path / "generic") / "tokenizer.json").types_notes
    assert "gives no token types, as in transformers 5" in note
    of_bert = read_tokenizer_file(kinds["bert"].write(tmp_path / "bert") / "tokenizer.json")
    assert of_bert.notes == of_bert.types_notes == ()


@pytest.mark.parametrize(
    ("settings", "model", "name"),
    [
        ({"tokenizer_class": "MBartTokenizer"}, None, "a MBartTokenizer, which keeps little more than the vocabulary"),
        ({"tokenizer_class": "GemmaTokenizerFast"}, None, "a GemmaTokenizer, which keeps little more"),
        ({}, {"model_type": "nllb"}, "a NllbTokenizer, which keeps little more"),
        ({"tokenizer_class": "LlamaTokenizer"}, None, "a LlamaTokenizer, which keeps little more"),
        ({"tokenizer_class": "EsmTokenizer"}, None, "a EsmTokenizer, which does not read tokenizer.json"),
    ],
)
def test_classes_that_are_not_followed_are_named(
    settings: dict[str, Any], model: dict[str, Any] | None, name: str, tmp_path: Path
) -> None:
    file = read_tokenizer_file(Kind("other", bert, settings, model).write(tmp_path) / "tokenizer.json")
    (note,) = (note for note in file.notes if "AutoTokenizer" in note)
    assert f"its tokenizer is {name}" in note
    assert "compare its ids with those of AutoTokenizer.from_pretrained(folder)" in note
    assert file.tokenizer().encode("The cat").ids == bert().encode("The cat").ids


@pytest.mark.parametrize(
    "kind",
    [
        Kind("bytes", bytes_of, {"tokenizer_class": "LlamaTokenizer"}),
        Kind("nobody", bert, {"tokenizer_class": "NobodysTokenizer"}),
        Kind("of model", bert, {"tokenizer_class": "LlamaTokenizer"}, {"model_type": "mistral"}),
    ],
    ids=lambda kind: kind.name,
)
def test_files_that_count_as_they_are_have_no_such_note(kind: Kind, tmp_path: Path) -> None:
    notes = read_tokenizer_file(kind.write(tmp_path) / "tokenizer.json").notes
    assert not any("AutoTokenizer" in note for note in notes)


def test_every_class_of_transformers_is_followed_or_named() -> None:
    """Compared with the classes that the installed transformers builds of more than tokenizer.json."""
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    unknown = []
    for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items():
        if not name or name in ("TokenizersBackend", "MistralCommonBackend"):
            continue
        found = class_of(model_type, None)
        plain = "__init__" not in vars(auto.tokenizer_class_from_name(name))
        if not plain and found.family == AS_SAVED and not found.difference({}):
            unknown.append((model_type, name))
    assert unknown == []


def test_a_file_that_auto_tokenizer_writes_is_right(tmp_path: Path) -> None:
    """What the note about other classes advises."""
    transformers = pytest.importorskip("transformers")
    pieces = dict(KINDS_BY_NAME["xlm_roberta"].__dict__, settings={"tokenizer_class": "MBartTokenizer"})
    folder = Kind(**pieces).write(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    expected = theirs(list(TEXTS))["input_ids"]
    path = folder / "tokenizer.json"
    before = read_tokenizer_file(path).encoder(None).encode(list(TEXTS))
    assert [row.tolist() for row in before.rows(before.ids)] != expected
    theirs.backend_tokenizer.save(str(path))
    after = read_tokenizer_file(path).encoder(None).encode(list(TEXTS))
    assert [row.tolist() for row in after.rows(after.ids)] == expected
