# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer may cost: how much longer its normalizers make texts, and whether its time grows as texts do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_GROWTH = 1000
"""The most characters that normalizers may make of one."""
_UNICODE_GROWTH = 18  # of U+FDFA, in NFKC and NFKD
_BY_UNICODE = ("NFD", "NFKD", "NFC", "NFKC", "Lowercase", "Nmt", "Precompiled", "BertNormalizer", "ByteLevel")
_LONGEST_WORD = 1000
"""Characters of the longest words that WordPiece may look at: its time grows with their square."""
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NUMBERS = (r"\p{N}", r"\p{N}{1,3}", r"\p{N}+")
HARMLESS_PATTERNS = frozenset(
    {
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        *(rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}|{_REST}" for number in _NUMBERS),
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        + _REST.replace(r"\p{L}\p{N}", r"\p{L}\p{M}\p{N}"),
        rf"<\|startoftext\|>|<\|endoftext\|>|{_CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",
        " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    }
)
"""Known patterns that are harmless: those of GPT-2, Llama 3, Qwen, CLIP and BLOOM, which never start over."""
_SET = r"\[\^?\]?(?:\\.|[^\]\\])*\]"
_ATOM = re.compile(rf"(?:\\[pP]\{{\^?\w+\}}|\\.|{_SET}|[^\\\[\](){{}}*+?|^$])")
_REPEAT = re.compile(r"[*+?]|\{\d*,?\d*\}")
_MAY_BE_EMPTY = re.compile(r"[*?^$|]|\{0|\{,|\\[bBAzZG]|^$")


def growth(tokenizer: Tokenizer) -> int:
    """A bound for the characters that the normalizers make of one."""
    most, by_unicode = 1, False
    for step in _steps(_state(tokenizer.normalizer)):
        if step.get("type") == "Replace":
            content, kind = str(step.get("content", "")), dict(step.get("pattern") or {})
            regex = str(kind.get("Regex", ""))
            may_be_empty = _MAY_BE_EMPTY.search(regex) is not None or "(?" in regex  # as far as that is plain to see
            least = len(str(kind["String"])) if "String" in kind else int(not may_be_empty)
            most *= max(1, -(-len(content) // least) if least else len(content) + 1)
            by_unicode = by_unicode and (content.isascii() or content == "\u2581")
        elif step.get("type") in _BY_UNICODE and not by_unicode:
            most, by_unicode = most * _UNICODE_GROWTH, True
    return most


def slow_pattern(tokenizer: Tokenizer) -> str | None:
    """The part of a tokenizer that may need more than twice the time for twice the text, for messages; None: none."""
    for step in (*_steps(_state(tokenizer.normalizer)), *_steps(_state(tokenizer.pre_tokenizer))):
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and "Regex" in pattern and not _is_linear(str(pattern["Regex"])):
            regex = str(pattern["Regex"])
            return f"the pattern {regex if len(regex) <= 60 else regex[:57] + '...'!a}"
    is_word_piece = type(tokenizer.model).__name__ == "WordPiece"
    longest = _state(tokenizer.model).get("max_input_chars_per_word") or 0 if is_word_piece else 0
    return f"words of {longest} characters (max_input_chars_per_word)" if longest > _LONGEST_WORD else None


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer, as tokenizer.json has it."""
    if part is None:
        return {}
    if hasattr(part, "max_input_chars_per_word"):
        return {"max_input_chars_per_word": part.max_input_chars_per_word}
    state = json.loads(part.__getstate__())
    return state if isinstance(state, dict) else {}


def _steps(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of sequences, in their order."""
    inner = state.get("normalizers", state.get("pretokenizers"))
    if inner is None:
        yield state
    for step in inner or ():
        yield from _steps(step)


def _is_linear(pattern: str) -> bool:
    """Whether a search takes time in proportion to the text.

    Known patterns do, and alternatives without groups: in each of these nothing but the last item repeats without an
    end, so that no character is read more often than there are alternatives.
    """
    return pattern in HARMLESS_PATTERNS or all(_ends_where_it_repeats(branch) for branch in _branches(pattern))


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern."""
    parts, start = list[str](), 0
    for match in re.finditer(rf"\\.|{_SET}|\|", pattern):
        if match.group() == "|":
            parts.append(pattern[start : match.start()])
            start = match.end()
    return [*parts, pattern[start:]]


def _ends_where_it_repeats(branch: str) -> bool:
    at = 1 if branch.startswith("^") else 0
    while at < len(branch):
        item = _ATOM.match(branch, at)
        if item is None:
            return False
        repeat = _REPEAT.match(branch, item.end())
        at = item.end() if repeat is None else repeat.end()
        endless = repeat is not None and (repeat.group() in ("*", "+") or re.fullmatch(r"\{\d*,\}", repeat.group()))
        long = repeat is not None and any(int(number) > 16 for number in re.findall(r"\d+", repeat.group()))
        if (endless or long) and at < len(branch):
            return False
    return True
