# SPDX-License-Identifier: Apache-2.0
"""Ids, types and cuts are those of transformers' AutoTokenizer, for every kind of tokenizer folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime.errors import SessionError
from padfree.runtime.text.encoder import TextEncoder
from padfree.runtime.text.tokenizer_file import read_tokenizer_file

from tests.support.tokenizer_answers import ANSWERS
from tests.support.tokenizer_kinds import KINDS, MOST, PAIRS, TEXTS, Kind, bert

EXPECTED: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))["kinds"]


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
        ("words_generic", "gives no token types, as in transformers 5"),
        ("words_add_eos", "[SEP]"),
        ("bert_padding_left", "pads on the left"),
    ):
        notes = read_tokenizer_file(kinds[name].write(tmp_path / name) / "tokenizer.json").notes
        assert any(words in note for note in notes), notes
    assert not read_tokenizer_file(kinds["bert"].write(tmp_path / "bert") / "tokenizer.json").notes
