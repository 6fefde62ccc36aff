# SPDX-License-Identifier: Apache-2.0
"""Texts and pairs of texts out of the lines of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from padfree.contract.texts import SENTENCES, SPARSE, TextInfo
from padfree.runtime.text import SPELLINGS_TEXT, pair_names
from padfree.runtime.texts import Text

from .errors import BuildError

Record = Mapping[str, Any] | Sequence[Any]
_TEXT, _PAIR = "text", "text_pair"


def check_single(texts: Sequence[Text], info: TextInfo | None, where: str) -> None:
    """Refuses pairs for a model that reads every text by itself.

    Args:
        texts: texts and pairs.
        info: what the model's folder said.
        where: what messages begin with.

    Raises:
        BuildError: there is a pair.
    """
    if info is not None and not info.may_take_pairs and not all(isinstance(text, str) for text in texts):
        if info.late is not None:
            raise BuildError(
                f"{where}a pair was given, and here the model's rows of tokens are asked for; leave the second text "
                "out, or let padfree run write scores: -o scores.jsonl"
            )
        raise BuildError(f"{where}the model reads texts by themselves, and a pair was given; leave the second text out")


def holds_texts(record: Record, info: TextInfo | None) -> bool:
    """Whether a line of JSON holds a text, or a pair, and not a model's inputs."""
    if not isinstance(record, Mapping):
        return bool(record) and all(isinstance(item, str) for item in record)
    return _TEXT in record or (_takes_pairs(info) and pair_names(record) is not None)


def text_of(record: Record, info: TextInfo | None, path: Path, number: int) -> Text:
    """The text of a line, or its pair: where the model takes pairs, or may, in any of the usual spellings.

    Args:
        record: what the line holds: an object, or a list of texts.
        info: what the model's folder said.
        path: the file, for messages.
        number: the line's number, for messages.

    Raises:
        BuildError: no text, or no pair where the model scores pairs.
    """
    where = f"{path}, line {number}"
    wants_pairs = info is not None and info.takes_pairs
    if not isinstance(record, Mapping):
        texts = [_check(item, "the list", where) for item in record]
        if len(texts) == 2:
            return texts[0], texts[1]
        raise BuildError(f"{where}: a list of {len(texts)} texts, allowed: a pair, or an object with '{_TEXT}'")
    names = pair_names(record) if _takes_pairs(info) else None
    if names is None and {_TEXT, _PAIR} <= set(record):
        names = _TEXT, _PAIR
    if names is not None:
        return _check(record[names[0]], names[0], where), _check(record[names[1]], names[1], where)
    if wants_pairs:
        raise BuildError(
            f"{where}: has {', '.join(record)}, and the model scores pairs; name two texts {SPELLINGS_TEXT}"
        )
    return _check(record[_TEXT], _TEXT, where)


def _takes_pairs(info: TextInfo | None) -> bool:
    """Whether two texts of a row are a pair: models of vectors take the text by itself."""
    return info is None or info.task not in (SENTENCES, SPARSE)


def _check(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise BuildError(f"{where}: '{name}' is {ascii(value)[:40]}, allowed: a text; correct it")
    return value
