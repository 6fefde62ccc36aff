# SPDX-License-Identifier: Apache-2.0
"""A compiled tokenizer gives the ids of the tokenizers library for any text."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.triton.compiled_tokenizer import NotCompiledError, compile_tokenizer
from padfree.runtime.text import TokenizerFile
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.support.compiled_tokenizers import CompiledTokenizer, compile_tokenizers
from tests.support.folders import DEMO_DATA, TOKENIZER
from tests.support.random_texts import random_text

pytestmark = pytest.mark.slow

TEXTS = (DEMO_DATA / "texts.txt").read_text("utf-8").splitlines()
KINDS: dict[str, dict[str, bool | None]] = {
    "uncased": {"lowercase": True},
    "cased": {"lowercase": False},
    "accents": {"lowercase": True, "strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True, "handle_chinese_chars": False},
}


def rich(**changes: bool | None) -> Tokenizer:
    """A tokenizer with a piece for most characters, so that no difference hides in an unknown word."""
    base = Tokenizer.from_file(str(TOKENIZER))
    normalizer = normalizers.BertNormalizer(clean_text=True, **changes)  # type: ignore[arg-type]
    vocabulary = dict(base.get_vocab(with_added_tokens=False))
    codes = [code for code in range(0x30000) if not 0xD800 <= code < 0xE000 and not 0xAC00 <= code < 0xD700]
    nfd = normalizers.NFD()
    for code in codes:
        for letter in nfd.normalize_str(normalizer.normalize_str(chr(code)).strip()):
            for piece in (letter, f"##{letter}"):
                vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.post_processor = base.post_processor
    tokenizer.add_special_tokens([AddedToken(name, lstrip=name == "[MASK]") for name in ("[CLS]", "[SEP]", "[MASK]")])
    return tokenizer


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++: apt-get install g++")
    return compile_tokenizers(compiler, tmp_path_factory.mktemp("tokenizers"))


def content_of(tokenizer: Tokenizer, most: int = 512) -> bytes:
    return compile_tokenizer(TokenizerFile(Path("tokenizer.json"), tokenizer.to_str().encode()), most)


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[tuple[Tokenizer, CompiledTokenizer]]:
    tokenizer = rich(**KINDS[request.param])
    compiled = CompiledTokenizer(library, content_of(tokenizer))
    yield tokenizer, compiled
    compiled.close()


def assert_same(both: tuple[Tokenizer, CompiledTokenizer], first: str, second: str | None = None) -> None:
    encoding = both[0].encode(first, second)
    expected = (encoding.ids, encoding.type_ids, len(encoding.ids))
    actual = both[1].encode(first.encode(), None if second is None else second.encode())
    assert actual == expected, (ascii(first), ascii(second), encoding.tokens)


def test_texts_and_pairs(both: tuple[Tokenizer, CompiledTokenizer]) -> None:
    rng = np.random.default_rng(3)
    for text in ("", " ", "[CLS]", "[MASK][MASK]", "x" * 100, "x" * 101, "word " * 20_000, "!" * 30_000, *TEXTS[:200]):
        assert_same(both, text)
        assert_same(both, text, TEXTS[0])
    for _ in range(4000):
        assert_same(both, random_text(rng), random_text(rng) if rng.random() < 0.3 else None)


def test_every_character(both: tuple[Tokenizer, CompiledTokenizer]) -> None:
    """Each character is between two letters, and after marks that canonical order moves."""
    for start in range(0, 0x30000, 64):
        codes = [code for code in range(start, start + 64) if not 0xD800 <= code < 0xE000]
        assert_same(both, " ".join(f"a{chr(code)}b" for code in codes), "".join(f"\u302e{chr(code)}" for code in codes))


@pytest.mark.parametrize("left", [False, True])
def test_texts_are_cut_as_the_library_cuts_them(both: tuple[Tokenizer, CompiledTokenizer], left: bool) -> None:
    tokenizer = Tokenizer.from_str(both[0].to_str())
    rng = np.random.default_rng(4)
    for _ in range(1500):
        most = int(rng.integers(3, 40))
        tokenizer.enable_truncation(most, direction="left" if left else "right")
        first, second = random_text(rng), random_text(rng) if rng.random() < 0.6 else None
        encoding = tokenizer.encode(first, second)
        actual = both[1].encode(first.encode(), None if second is None else second.encode(), most=most, left=left)
        assert actual is not None
        assert actual[:2] == (encoding.ids, encoding.type_ids), (most, ascii(first), ascii(second))
        assert (actual[2] > len(actual[0])) == bool(encoding.overflowing)
        assert actual[2] == len(both[0].encode(first, second))


def test_bytes_that_are_no_text(both: tuple[Tokenizer, CompiledTokenizer]) -> None:
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(4000):
        content = bytearray(random_text(rng).encode() or b"a")
        content[rng.integers(len(content))] = int(rng.integers(256))
        try:
            content.decode()
        except UnicodeDecodeError:
            assert both[1].encode(bytes(content)) is None, bytes(content)
            refused += 1
        else:
            assert both[1].encode(bytes(content)) is not None, bytes(content)
    assert refused > 500


def test_frames_of_other_kinds(library: ctypes.CDLL) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    specials = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    template: Any = processors.TemplateProcessing(
        single="[CLS] $A:1 [SEP] [SEP]", pair="[CLS] $A [SEP] [SEP] $B:1 [SEP]:1", special_tokens=specials
    )
    for processor in (template, processors.RobertaProcessing(specials[1], specials[0]), None):
        tokenizer.post_processor = processor
        compiled = CompiledTokenizer(library, content_of(tokenizer))
        for first, second in (("the cat", None), ("the cat", "rain"), ("", ""), ("", None)):
            assert_same((tokenizer, compiled), first, second)
        compiled.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": normalizers.NFC()}, "has the normalizer NFC, and compiled ones have BertNormalizer"),
        ({"normalizer": normalizers.BertNormalizer(clean_text=False)}, "keeps control characters"),
        ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "has the pre_tokenizer Whitespace"),
        ({"model": models.BPE()}, "has the model BPE"),
        ({"model": models.WordPiece({"a": 0}, unk_token="[UNK]")}, r"has no '\[UNK\]', which unknown words turn into"),
    ],
)
def test_tokenizers_of_another_kind(changes: dict[str, Any], message: str) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    with pytest.raises(NotCompiledError, match=message):
        content_of(tokenizer)


def test_added_tokens_of_another_kind() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_tokens([AddedToken("mat", normalized=True)])
    with pytest.raises(NotCompiledError, match="looks for 'mat' in words or after they were normalized"):
        content_of(tokenizer)


def test_pairs_that_leave_no_room() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    with pytest.raises(NotCompiledError, match="puts more than --max-length 2 tokens around a pair of texts"):
        content_of(tokenizer, most=2)


def test_damaged_files_are_refused(library: ctypes.CDLL) -> None:
    content = content_of(Tokenizer.from_file(str(TOKENIZER)))
    rng = np.random.default_rng(6)
    for size in rng.integers(0, len(content), 40).tolist():
        with pytest.raises(ValueError, match=r"."):
            CompiledTokenizer(library, content[:size])
