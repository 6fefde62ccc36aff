# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that explode are refused where that is obvious, and otherwise run in a process that may die."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime.errors import SessionError
from padfree.runtime.text.apart import Apart, TextError
from padfree.runtime.text.encoder import TextEncoder
from padfree.runtime.text.hazards import HARMLESS_PATTERNS, growth, slow_pattern
from padfree.runtime.text.tokenizer_file import read_tokenizer_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from tests.support.rebuilt_kinds import REBUILT_KINDS
from tests.support.tokenizer_kinds import KINDS

EXPLODES = "(a+)+$"  # tries every way to divide a run of a's
BY_SQUARE = "(?:a|b)+[bc]d"  # reads the rest of a run of a's again from each a
BOMB = "a" * 5000 + "!"


def letters(pattern: str | None = None, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate("ab!c ")}, []))
    if pattern is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def doubling(times: int) -> Any:
    return normalizers.Sequence([normalizers.Replace("a", "aa")] * times)


@pytest.mark.parametrize(
    ("normalizer", "most"),
    [
        (doubling(40), 2**40),
        (normalizers.Sequence([normalizers.Replace(Regex("x?"), "a")] * 40), 2**40),
        (normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("a", "\ufdfa")] * 10), 18**10),
        (normalizers.Sequence([doubling(5), doubling(5), normalizers.Replace("aaa", "aaaa")]), 2**11),
        (normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.Replace(" ", "\u2581")]), 18),
        (normalizers.Replace(Regex(" {2,}"), " "), 1),
        (None, 1),
    ],
)
def test_growth(normalizer: Any, most: int) -> None:
    assert growth(letters(normalizer=normalizer)) == most


@pytest.mark.parametrize("pattern", ["x?", "(?=a)", "", "a|", r"\b"])
def test_growth_of_patterns_that_find_nothing_at_all(pattern: str) -> None:
    """The library's output is the measure: such a pattern matches at every letter."""
    normalizer = normalizers.Replace(Regex(pattern), "zz")
    result = normalizer.normalize_str("aaaaaaaa")
    assert len(result) <= 8 * growth(letters(normalizer=normalizer)) + 2


def test_doubling_normalizers_are_refused_at_once(tmp_path: Path) -> None:
    letters(normalizer=doubling(40)).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(SessionError, match=r"may make 1,099,511,627,776 characters from one, allowed: 1,000"):
        read_tokenizer_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("pattern", "linear"),
    [
        (EXPLODES, False), (BY_SQUARE, False), ("a*b", False), ("a+$", False), ("(?=a)", False), ("a{900}b", False),
        ("(a|a)*b", False),
        (" {2,}", True), (r"\s{2,}|[\n\r\t]", True), (r"[^\s|]+", True), (r"\p{N}", True), (r"\d{1,3}", True),
        *((known, True) for known in sorted(HARMLESS_PATTERNS)),
    ],
)  # fmt: skip
def test_patterns(pattern: str, *, linear: bool) -> None:
    assert (slow_pattern(letters(pattern)) is None) == linear


@pytest.mark.parametrize("pattern", sorted(HARMLESS_PATTERNS))
def test_known_patterns_take_time_as_texts_grow(pattern: str) -> None:
    tokenizer = letters(pattern)
    for text in ("a", " ", "\n", "1", "!", "' ", "\u00e9", " a", " \n", "a1"):
        began = time.process_time()
        tokenizer.pre_tokenizer.pre_tokenize_str(text * 100_000)
        assert time.process_time() - began < 10, text


def test_the_usual_kinds_need_no_process(tmp_path: Path) -> None:
    for kind in (*KINDS, *REBUILT_KINDS):
        tokenizer = read_tokenizer_file(kind.write(tmp_path / kind.name) / "tokenizer.json").tokenizer()
        assert Apart.of(tokenizer) is None, kind.name


def test_words_of_any_length_are_slow() -> None:
    model = models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]", max_input_chars_per_word=10**6)
    assert slow_pattern(Tokenizer(model)) == "words of 1000000 characters (max_input_chars_per_word)"


@pytest.mark.slow
def test_a_pattern_that_gives_up() -> None:
    encoder = TextEncoder(letters(EXPLODES), 4)
    with pytest.raises(TextError, match=r"text 1: the tokenizer gives up \(.*retry-limit") as refusal:
        encoder.encode(["ab", BOMB, "b"])
    assert refusal.value.text == 1
    same = letters(EXPLODES)
    same.enable_truncation(4)
    texts = ["ab", "aaaaaaab", ("ab", "b")]
    encoded = encoder.encode(texts)  # in a new process
    results = [same.encode(*([text] if isinstance(text, str) else text)) for text in texts]
    assert [row.tolist() for row in encoded.rows(encoded.ids)] == [each.ids for each in results]
    assert encoded.cut.tolist() == [False, True, False]
    assert encoder.full_length(texts[1]) == 8
    assert encoder.prompt_tokens("ab") == 2


@pytest.mark.parametrize("text", ["a\ud800b", ("a", "\udfff")])
def test_half_of_a_character(text: Any) -> None:
    with pytest.raises(TextError, match="text 1: holds half of a character") as refusal:
        TextEncoder(letters(), 4).encode(["ab", text, "b"])
    assert refusal.value.text == 1
    assert TextEncoder(letters(), 4).encode(["a\0b"]).seq_lens.tolist() == [2]


@pytest.mark.slow
def test_a_text_that_takes_too_long() -> None:
    encoder = TextEncoder(letters(BY_SQUARE), 4)
    with pytest.raises(TextError, match=r"more than 9 s of a processor's time, due to the pattern '\(\?:a"):
        encoder.encode(["a" * 200_000])
    assert encoder.encode(["ab"]).seq_lens.tolist() == [2]


@pytest.mark.slow
def test_a_text_that_takes_too_much_memory() -> None:
    """The normalizers stay below the limit of refusal, and because of the pattern they run in another process."""
    steps = [normalizers.Replace(Regex("a(b|c)"), "ab"), doubling(28)]
    encoder = TextEncoder(letters(normalizer=normalizers.Sequence(steps)), 4)
    with pytest.raises(TextError, match="takes more than"):
        encoder.encode(["aaaaaaaa"])
    assert encoder.encode(["b"]).seq_lens.tolist() == [1]
