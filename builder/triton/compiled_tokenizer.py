# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of BERT's kind as the native backend reads it (plugins/tokenizer).

What becomes of every character of Unicode is not written down here: the tokenizers library is asked, so ids are those
of the version that is installed where the repository is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from padfree.runtime.text import TokenizerFile

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

COMPILED_FILE = "tokenizer.compiled.json"
_KINDS = ("BertNormalizer", "BertPreTokenizer", "WordPiece")
_SEPARATOR = "|"
_EMPTY_PLANES = range(4, 14)
"""Parts of Unicode without characters."""
_GONE = "\0"
"""In place of a character that is left out, between others that are put in order."""
_LOW, _HIGH = "\u0334", "\u0301"  # marks over a letter; the first comes before almost all others in canonical order


class NotCompiledError(Exception):
    """A tokenizer that the native backend does not read; the message goes on from "its tokenizer"."""


def compile_tokenizer(source: TokenizerFile, max_length: int) -> bytes:
    """The file for the native backend.

    Args:
        source: the tokenizer.
        max_length: tokens of a text or pair.

    Raises:
        NotCompiledError: a tokenizer of another kind.
    """
    tokenizer = source.tokenizer()
    settings: dict[str, Any] = json.loads(tokenizer.to_str())
    if source.template is not None:
        raise NotCompiledError("stands in a template around pairs")
    _check_kind(settings)
    _check_added(settings["added_tokens"])
    model = settings["model"]
    if model["unk_token"] not in model["vocab"]:
        raise NotCompiledError(f"has no {model['unk_token']!a}, which unknown words turn into")
    frames = {"single": _frame(tokenizer, ["a"]), "pair": _frame(tokenizer, ["a", "a"])}
    for name, frame in frames.items():
        if sum(map(len, frame["ids"])) > max_length:
            raise NotCompiledError(f"puts more than --max-length {max_length} tokens around a {name} of texts")
    content = {
        "format": 1,
        "vocabulary": model["vocab"],
        "added": {token["content"]: token["id"] for token in settings["added_tokens"] if token["content"]},
        "prefix": model["continuing_subword_prefix"],
        "unknown": model["vocab"][model["unk_token"]],
        "longest_word": model["max_input_chars_per_word"],
        **frames,
        "characters": _characters(*_flags(settings["normalizer"])),
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _check_kind(settings: dict[str, Any]) -> None:
    parts = ("normalizer", "pre_tokenizer", "model")
    kinds = [str((settings[part] or {}).get("type")) for part in parts]
    for part, kind, bert_kind in zip(parts, kinds, _KINDS, strict=True):
        if kind != bert_kind:
            raise NotCompiledError(f"has the {part} {kind}, and compiled ones have {bert_kind}")
    if not settings["normalizer"]["clean_text"]:
        raise NotCompiledError("keeps control characters (clean_text is false)")


def _check_added(tokens: Sequence[dict[str, Any]]) -> None:
    """lstrip and rstrip change nothing: the spaces that they take would go anyway."""
    for token in tokens:
        if token["single_word"] or token["normalized"]:
            raise NotCompiledError(f"looks for {token['content']!a} in words or after they were normalized")
        if any(letter.isspace() for letter in token["content"]):
            raise NotCompiledError(f"has {token['content']!a}, an added token with a space")


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoding:
    return tokenizer.encode(texts[0], texts[1] if len(texts) > 1 else None)


def _frame(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """Ids and types before, between and after texts, and the types of these."""
    encoding = _encode(tokenizer, texts)
    ids, types = [list[int]() for _ in range(len(texts) + 1)], [list[int]() for _ in range(len(texts) + 1)]
    text_types, seen = [0] * len(texts), 0
    for item, kind, of_text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if of_text is None:
            ids[seen].append(item)
            types[seen].append(kind)
        elif of_text in (seen - 1, seen):
            text_types[of_text] = kind
            seen = of_text + 1
        else:
            seen = -1
            break
    around = [item for part in ids for item in part]
    if seen != len(texts) or _encode(tokenizer, [""] * len(texts)).ids != around:
        raise NotCompiledError("does not put texts one after the other")
    if tokenizer.num_special_tokens_to_add(len(texts) == 2) != len(around):
        raise NotCompiledError("counts other tokens around texts than it puts there")
    return {"ids": ids, "types": types, "text_types": text_types}


def _flags(normalizer: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Whether marks stand by themselves that are words in Chinese, accents go, and letters become small."""
    lowercase, strips = bool(normalizer["lowercase"]), normalizer["strip_accents"]
    return bool(normalizer["handle_chinese_chars"]), lowercase if strips is None else bool(strips), lowercase


@cache
def _characters(chinese: bool, strips: bool, lowercase: bool) -> dict[str, Any]:
    """What becomes of all characters, and which of the results part words."""
    whole = _bert(clean_text=True, handle_chinese_chars=chinese, strip_accents=strips, lowercase=lowercase)
    characters = _all_characters(whole)
    results = dict(zip(characters, _each(whole, characters), strict=True))
    ranks = dict[str, int]()
    if strips:
        ranks, gone = _order(characters, lowercase=lowercase)
        cleaning = _bert(clean_text=True, handle_chinese_chars=chinese, strip_accents=False, lowercase=False)
        decompositions = _each(_nfd(), _each(cleaning, characters))
        for character, parts in zip(characters, decompositions, strict=True):
            if not gone.isdisjoint(parts):
                results[character] = "".join(_GONE if part in gone else results.get(part, part) for part in parts)
    changed = {key: value for key, value in results.items() if value != key}
    losses = [key for key, value in changed.items() if not value]
    ideographs = [key for key, value in changed.items() if value == f" {key} "]
    for key in (*losses, *ideographs):
        del changed[key]
    letters = sorted({letter for result in results.values() for letter in result} - {_GONE} | {_SEPARATOR})
    kinds = list(_kinds(letters))
    return {
        "dropped": _ranges(losses),
        "spaced": _ranges(ideographs),
        "changed": changed,
        "ranks": [number for letter, rank in ranks.items() for number in (ord(letter), rank)],
        "spaces": _ranges([letter for letter, kind in kinds if kind == "space"]),
        "marks": _ranges([letter for letter, kind in kinds if kind == "mark"]),
    }


def _all_characters(normalizer: Any) -> list[str]:
    """All that have to be asked about: empty planes only where a few of their code points do not stay as they are."""
    planes = [plane for plane in range(17) if plane not in _EMPTY_PLANES]
    empty = _in_planes(_EMPTY_PLANES)
    if (few := empty[::251]) != _each(normalizer, few):
        planes += _EMPTY_PLANES
    return _in_planes(planes)


def _in_planes(planes: Iterable[int]) -> list[str]:
    codes = chain.from_iterable(range(plane << 16, (plane + 1) << 16) for plane in planes)
    return [chr(code) for code in codes if not 0xD800 <= code < 0xE000 and code != ord(_SEPARATOR)]


def _order(characters: Sequence[str], *, lowercase: bool) -> tuple[dict[str, int], set[str]]:
    """Ranks in canonical order of the characters that stay and have one; those that go, and part others."""
    simple = [a for a, b in zip(characters, _each(_nfd(), characters), strict=True) if a == b]
    strip = _bert(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=lowercase)
    remains = _each(strip, simple)
    moves = [
        low == _LOW + letter or high == letter + _HIGH
        for letter, low, high in zip(
            simple,
            _each(_nfd(), [letter + _LOW for letter in simple]),
            _each(_nfd(), [_HIGH + letter for letter in simple]),
            strict=True,
        )
    ]
    movable = [letter for letter, does in zip(simple, moves, strict=True) if does]
    staying = [letter for letter, does, left in zip(simple, moves, remains, strict=True) if does and left]
    ranks = {
        letter: 1 + sum(pair == other + letter for pair, other in zip(_after(letter, movable), movable, strict=True))
        for letter in staying
    }
    gone = {letter for letter, does, left in zip(simple, moves, remains, strict=True) if not does and not left}
    return ranks, gone


def _after(letter: str, others: Sequence[str]) -> list[str]:
    """A letter with each of the others behind it, in canonical order."""
    return _each(_nfd(), [letter + other for other in others])


def _nfd() -> Any:
    from tokenizers import normalizers

    return normalizers.NFD()


def _bert(**flags: bool) -> Any:
    from tokenizers import normalizers

    return normalizers.BertNormalizer(**flags)


def _each(normalizer: Any, texts: Sequence[str]) -> list[str]:
    """What a normalizer makes of each text by itself."""
    results = list[str]()
    for at in range(0, len(texts), 1 << 16):
        results += normalizer.normalize_str(_SEPARATOR.join(texts[at : at + (1 << 16)])).split(_SEPARATOR)
    if len(results) != len(texts):
        raise NotCompiledError("normalizes characters together")
    return results


def _kinds(letters: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every letter that parts words, and whether it goes ("space") or is one itself ("mark")."""
    from tokenizers import pre_tokenizers

    cutter = pre_tokenizers.BertPreTokenizer()
    pieces = iter([piece for piece, _ in cutter.pre_tokenize_str(" ".join(f"x{letter}x" for letter in letters))])
    for letter in letters:
        piece = next(pieces)
        if piece == f"x{letter}x":
            continue
        rest = next(pieces)
        yield letter, "space" if rest == "x" and letter != "x" else "mark"
        if rest != "x":
            next(pieces)


def _ranges(letters: Iterable[str]) -> list[int]:
    """First and last of every run of code points."""
    ranges = list[int]()
    for code in sorted(map(ord, letters)):
        if ranges and ranges[-1] == code - 1:
            ranges[-1] = code
        else:
            ranges += [code, code]
    return ranges
