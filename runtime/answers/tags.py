# SPDX-License-Identifier: Apache-2.0
"""From a tagger's rows to words with labels, and to what several words name together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .scores import Floats, label_name, softmax

if TYPE_CHECKING:
    from tokenizers import Encoding

OUTSIDE = "O"
"""The label of words that belong to nothing."""
_BEGINS, _GOES_ON = "B-", "I-"


@dataclass(frozen=True)
class TaggedSpan:
    """A word of a text, or several that name something together.

    Attributes:
        text: as it stands in the text.
        start: index of its first character in the text.
        end: index after its last character.
        label: without "B-" and "I-" where words are joined.
        score: the label's probability; of several words, their mean.
    """

    text: str
    start: int
    end: int
    label: str
    score: float


def words_of(text: str, encoding: Encoding, rows: npt.NDArray[Any], labels: Sequence[str]) -> list[TaggedSpan]:
    """Every word of a text with its label, that of its first token.

    Args:
        text: the text.
        encoding: its tokens.
        rows: [len, K], a tagger's numbers of every token.
        labels: names of the K labels.
    """
    probabilities: Floats = softmax(np.asarray(rows, np.float32))
    words = list[TaggedSpan]()
    before: int | None = None
    for word, row, (start, end) in zip(encoding.word_ids, probabilities, encoding.offsets, strict=True):
        if word is None:  # a special token
            before = None
            continue
        if word == before:
            last = words[-1]
            words[-1] = TaggedSpan(text[last.start : end], last.start, end, last.label, last.score)
        else:
            at = int(row.argmax())
            start += len(text[start:end]) - len(text[start:end].lstrip())  # byte-level tokens begin with a space
            words.append(TaggedSpan(text[start:end], start, end, label_name(labels, at), float(row[at])))
        before = word
    return [word for word in words if word.text]  # tokens of spaces alone


def join(text: str, words: Sequence[TaggedSpan]) -> list[TaggedSpan]:
    """Joins neighbouring words of one kind, up to the next "B-"; words without a label are left out."""
    groups = list[list[TaggedSpan]]()
    last = ""
    for word in words:
        begins, kind = _kind(word.label)
        if groups and kind == last and not begins:
            groups[-1].append(word)
        else:
            groups.append([word])
        last = kind
    return [
        TaggedSpan(
            text[group[0].start : group[-1].end],
            group[0].start,
            group[-1].end,
            _kind(group[0].label)[1],
            float(np.mean([word.score for word in group])),
        )
        for group in groups
        if group[0].label != OUTSIDE
    ]


def _kind(label: str) -> tuple[bool, str]:
    """Whether a label begins something, and of what kind that is."""
    if label.startswith((_BEGINS, _GOES_ON)):
        return label.startswith(_BEGINS), label[len(_BEGINS) :]
    return False, label
