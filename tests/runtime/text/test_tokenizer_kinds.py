# SPDX-License-Identifier: Apache-2.0
"""Ids, types and truncation are those of transformers' AutoTokenizer, for every kind of tokenizer folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime.errors import SessionError
from padfree.runtime.text.encoder import TextEncoder
from padfree.runtime.text.families.classes import class_of
from padfree.runtime.text.families.rebuilding import FAMILIES
from padfree.runtime.text.tokenizer_file import read_tokenizer_file

from tests.support.rebuilt_kinds import REBUILT_KINDS
from tests.support.tokenizer_answers import ANSWERS
from tests.support.tokenizer_kinds import KINDS as USUAL_KINDS
from tests.support.tokenizer_kinds import MOST, PAIRS, TEXTS, Kind, bert, bytes_of

EXPECTED: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))["kinds"]
KINDS = (*USUAL_KINDS, *REBUILT_KINDS)


def test_there_are_enough_kinds() -> None:
    assert {kind.name for kind in KINDS} == set(EXPECTED)
    assert len(KINDS) >= 90


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_as_auto_tokenizer(kind: Kind, tmp_path: Path) -> None:
    file = read_tokenizer_file(kind.write(tmp_path) / "tokenizer.json")
    for inputs, texts in (("texts", list(TEXTS)), ("pairs", list(PAIRS))):
        for suffix, most in (("", None), ("_cut", MOST)):
            expected = EXPECTED[kind.name][inputs + suffix]
            encoder = TextEncoder(
                file.tokenizer(), most, side=file.truncation_side, token_types=file.token_types is not False
            )
            actual = encoder.encode(texts)
            ids = [row.tolist() for row in actual.rows(actual.ids)]
            assert ids == expected["input_ids"], inputs + suffix
            types = [row.tolist() for row in actual.rows(actual.types)]
            zeros = [[0] * len(row) for row in ids]
            assert types == expected.get("token_type_ids", zeros), inputs + suffix
            assert bool(file.token_types) == ("token_type_ids" in expected)
            if most is not None:
                whole = EXPECTED[kind.name][inputs]["input_ids"]
                assert actual.cut.tolist() == [len(row) > most for row in whole]


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


@pytest.mark.parametrize(
    ("name", "make", "wanted"),
    [
        ("RobertaTokenizer", bert, "a BPE vocabulary and '<s>' and '</s>'"),
        ("BertTokenizer", bytes_of, "a WordPiece vocabulary and '[CLS]' and '[SEP]'"),
        ("MBartTokenizer", bert, "a Unigram vocabulary and '</s>' and '<unk>'"),
        ("ConvBertTokenizer", bytes_of, "puts '[CLS]' around texts, and tokenizer.json has none"),
    ],
)
def test_a_class_of_another_vocabulary(name: str, make: Any, wanted: str, tmp_path: Path) -> None:
    """transformers fails, or builds a tokenizer whose ids mean nothing to the model."""
    folder = Kind("other", make, {"tokenizer_class": name}).write(tmp_path)
    with pytest.raises(SessionError, match=f"{name}, which .*{re.escape(wanted)}"):
        read_tokenizer_file(folder / "tokenizer.json")


def test_tokens_that_the_model_has_no_row_for(tmp_path: Path) -> None:
    size = bert().get_vocab_size()
    folder = Kind("more", bert, {"tokenizer_class": "BertTokenizer", "extra_special_tokens": ["<ent>"]}).write(tmp_path)
    for rows, added in ((size, None), (size + 1, size)):
        actual = read_tokenizer_file(folder / "tokenizer.json", rows=rows).tokenizer()
        assert actual.token_to_id("<ent>") == added


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
        ({"tokenizer_class": "MarkupLMTokenizer"}, None, "a MarkupLMTokenizer, which keeps little more than the"),
        (
            {"tokenizer_class": "LukeTokenizerFast"},
            None,
            "a LukeTokenizer, which keeps little more",
        ),
        ({}, {"model_type": "roformer"}, "a RoFormerTokenizer, which keeps little more than the vocabulary"),
        ({"tokenizer_class": "EsmTokenizer"}, None, "a EsmTokenizer, which does not read tokenizer.json"),
    ],
)
def test_classes_that_are_not_followed_are_refused(
    settings: dict[str, Any], model: dict[str, Any] | None, name: str, tmp_path: Path
) -> None:
    """The next step that the error names works: with it, AutoTokenizer follows tokenizer.json, too."""
    folder = Kind("other", bert, settings, model).write(tmp_path)
    with pytest.raises(SessionError, match=f"its tokenizer is {name}") as refusal:
        read_tokenizer_file(folder / "tokenizer.json")
    assert 'set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json' in str(refusal.value)
    settings = {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    file = read_tokenizer_file(Kind("other", bert, settings, model).write(tmp_path) / "tokenizer.json")
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
    """The classes are those of the installed transformers that build on more than tokenizer.json."""
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    unknown = []
    for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items():
        if not name or name in ("TokenizersBackend", "MistralCommonBackend"):
            continue
        actual = class_of(model_type, None)
        plain = "__init__" not in vars(auto.tokenizer_class_from_name(name))
        followed = actual.family in FAMILIES if actual.family else actual.difference()
        if not plain and not followed:
            unknown.append((model_type, name))
    assert unknown == []
