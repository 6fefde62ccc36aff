# SPDX-License-Identifier: Apache-2.0
"""Looking tokens up word by word gives the tokens of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.runtime.text import word_pieces
from padfree.runtime.text.word_pieces import WordPieces
from padfree.runtime.texts import Text
from padfree.runtime.word_table import open_library
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.support.folders import DEMO_DATA, TOKENIZER

ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
TEXTS = (DEMO_DATA / "texts.txt").read_text("utf-8").splitlines()


def tokenizer(**changes: Any) -> Tokenizer:
    actual = Tokenizer.from_file(str(TOKENIZER))
    for name, value in changes.items():
        setattr(actual, name, value)
    return actual


@pytest.fixture(scope="module")
def both() -> tuple[Tokenizer, WordPieces]:
    pieces = WordPieces.of(tokenizer())
    assert pieces is not None
    return tokenizer(), pieces


@settings(deadline=None, max_examples=400)
@given(text=ASCII | st.text(max_size=30))
def test_any_text(both: tuple[Tokenizer, WordPieces], text: str) -> None:
    library, pieces = both
    ids = pieces.ids(text)
    assert ids is None or ids == library.encode(text).ids
    assert ids is not None or not (text.isascii() and text.isprintable()) or "[" in text


@settings(deadline=None, max_examples=200)
@given(
    words=st.lists(
        st.sampled_from(["The", "catlike", "don't", "[MASK]", "[mask]", "é", "3.5", "\t", "##s", "x" * 120])
    ),
    most=st.integers(2, 12),
)
def test_texts_are_cut_as_the_library_cuts_them(
    both: tuple[Tokenizer, WordPieces], words: list[str], most: int
) -> None:
    _, pieces = both
    library = tokenizer()
    library.enable_truncation(most)
    text = " ".join(words)
    ids = pieces.ids(text, most)
    assert ids is None or ids == library.encode(text).ids


@settings(deadline=None, max_examples=200)
@given(
    texts=st.tuples(*[st.text(st.characters(max_codepoint=127), max_size=40)] * 2), most=st.none() | st.integers(4, 60)
)
def test_pairs(both: tuple[Tokenizer, WordPieces], texts: tuple[str, str], most: int | None) -> None:
    _, pieces = both
    library = tokenizer()
    if most is not None:
        library.enable_truncation(most)
    encoding = library.encode(*texts)
    assert pieces.pair(*texts, most) in (None, (encoding.ids, encoding.type_ids))


def test_pairs_of_real_texts_are_plain(both: tuple[Tokenizer, WordPieces]) -> None:
    library, pieces = both
    for text in TEXTS:
        encoding = library.encode(TEXTS[0], text)
        assert pieces.pair(TEXTS[0], text) == (encoding.ids, encoding.type_ids)
        assert pieces.pair(TEXTS[0], text, len(encoding) - 1) is None


def test_pairs_of_another_kind_are_left_to_the_library() -> None:
    specials = [(name, tokenizer().token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    swapped = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $B [SEP] $A:1 [SEP]:1", special_tokens=specials
    )
    pieces = WordPieces.of(tokenizer(post_processor=swapped))
    assert pieces is not None
    assert pieces.ids("the cat") is not None
    assert pieces.pair("the cat", "rain") is None


def test_real_texts_are_plain(both: tuple[Tokenizer, WordPieces]) -> None:
    library, pieces = both
    assert [pieces.ids(text) for text in TEXTS] == [library.encode(text).ids for text in TEXTS]


def test_letters_keep_their_size_where_the_model_knows_it() -> None:
    cased = tokenizer(normalizer=normalizers.BertNormalizer(lowercase=False))
    pieces = WordPieces.of(cased)
    assert pieces is not None
    assert pieces.ids("The CAT") == cased.encode("The CAT").ids != pieces.ids("the cat")


def test_all_is_forgotten_before_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_pieces, "MOST_WORDS", 3)
    library, pieces = tokenizer(), WordPieces.of(tokenizer())
    assert pieces is not None
    for text in (*TEXTS, "y" * 100):
        assert pieces.ids(text) == library.encode(text).ids
    assert len(pieces._pieces) <= 3


@pytest.fixture(scope="module", params=["compiled", "python"])
def many(request: pytest.FixtureRequest) -> tuple[Tokenizer, WordPieces]:
    """The library's tokenizer, and word pieces that look up many texts at a time, in libpadfree_text.so or not."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(word_pieces, "open_library", lambda: None)
        elif open_library() is None:
            pytest.skip("padfree was installed without libpadfree_text.so")
        pieces = WordPieces.of(tokenizer())
    assert pieces is not None
    return tokenizer(), pieces


def looked_up(
    library: Tokenizer, pieces: WordPieces, texts: Sequence[Text], most: int | None
) -> tuple[list[list[int]], list[list[int]], int]:
    """Ids and types of every row, and how many rows the look-up left out; the library makes those."""
    library.no_truncation()
    if most is not None:
        library.enable_truncation(most)
    actual = pieces.look_up(texts, most)
    left = [library.encode(*([texts[at]] if isinstance(texts[at], str) else texts[at])) for at in actual.rows_left]
    whole = actual.complete([(encoding.ids, encoding.type_ids) for encoding in left])
    ends = np.cumsum(whole.counts)[:-1]
    return (
        [part.tolist() for part in np.split(whole.ids, ends)],
        [part.tolist() for part in np.split(whole.types, ends)],
        len(left),
    )


ANY = st.text(st.characters(max_codepoint=127), max_size=40) | st.sampled_from(
    ["The catlike don't", "[MASK] it", "é", "3.5\t x", "a\0b", "y" * 70, "", "##s ALL " * 9]
)


@settings(deadline=None, max_examples=150)
@given(texts=st.lists(ANY, min_size=1, max_size=6), pairs=st.booleans(), most=st.none() | st.integers(4, 40))
def test_many_texts_at_a_time(
    many: tuple[Tokenizer, WordPieces], texts: list[str], pairs: bool, most: int | None
) -> None:
    library, pieces = many
    rows: list[Text] = [(text, texts[at - 1]) for at, text in enumerate(texts)] if pairs else list(texts)
    ids, types, left = looked_up(library, pieces, rows, most)
    encodings = [library.encode(*([row] if isinstance(row, str) else row)) for row in rows]
    assert ids == [encoding.ids for encoding in encodings]
    assert types == [encoding.type_ids for encoding in encodings]
    assert left or not any("é" in text for text in texts)


def test_texts_beside_pairs(many: tuple[Tokenizer, WordPieces]) -> None:
    library, pieces = many
    rows: list[Text] = ["the cat", ("the cat", "rain"), "é"]
    ids, types, left = looked_up(library, pieces, rows, None)
    assert ids == [library.encode(*([row] if isinstance(row, str) else row)).ids for row in rows]
    assert 1 in types[1]
    assert left == 1


def test_real_texts_are_looked_up_whole(many: tuple[Tokenizer, WordPieces]) -> None:
    library, pieces = many
    actual = pieces.look_up(TEXTS * 30)
    assert actual.rows_left == []
    assert actual.ids.tolist() == [item for text in TEXTS * 30 for item in library.encode(text).ids]


def test_a_table_that_is_emptied_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_pieces, "MOST_WORDS", 40)
    library, pieces = tokenizer(), WordPieces.of(tokenizer())
    assert pieces is not None
    for text in TEXTS:
        ids, _, _ = looked_up(library, pieces, [text], None)
        assert ids == [library.encode(text).ids]


def test_threads_share_a_table() -> None:
    library, pieces = tokenizer(), WordPieces.of(tokenizer())
    assert pieces is not None
    wanted = [item for text in TEXTS for item in library.encode(text).ids]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: pieces.look_up(TEXTS), range(40)))
    assert all(one.rows_left == [] and one.ids.tolist() == wanted for one in results)


def add(actual: Tokenizer, **flags: bool) -> Tokenizer:
    actual.add_tokens([AddedToken("newword", **flags)])
    return actual


@pytest.mark.parametrize(
    "make",
    [
        lambda: tokenizer(normalizer=normalizers.Lowercase()),
        lambda: tokenizer(normalizer=normalizers.BertNormalizer(clean_text=False)),
        lambda: tokenizer(pre_tokenizer=pre_tokenizers.Whitespace()),
        lambda: tokenizer(model=models.BPE()),
        lambda: add(tokenizer(), normalized=True),
        lambda: add(tokenizer(), normalized=False, single_word=True),
        lambda: tokenizer(post_processor=processors.TemplateProcessing("$A $A", "$A $B")),
    ],
)
def test_other_tokenizers_are_left_to_the_library(make: Callable[[], Tokenizer]) -> None:
    assert WordPieces.of(make()) is None


def test_a_tokenizer_without_special_tokens_is_taken() -> None:
    bare = tokenizer(post_processor=processors.TemplateProcessing("$A", "$A $B"))
    pieces = WordPieces.of(bare)
    assert pieces is not None
    assert pieces.ids("the cat") == bare.encode("the cat").ids
