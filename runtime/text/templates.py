# SPDX-License-Identifier: Apache-2.0
"""Tokens of pairs of texts in a template: as the whole text is tokenised, and of long ones the document loses its end.

A text and what stands around it are tokenised together, as where a query's question mark and the line's end are one
token. What does not fit is taken from the document first, then from the query, never from the template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from padfree.contract.templates import DOCUMENT, QUERY, Template
from padfree.contract.texts import RIGHT

from ..errors import SessionError
from .hazards import slow_pattern

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TemplateRow = tuple[list[int], list[int], bool]
Spans = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class _FieldText:
    """A part of a pair: the text, and where in it fields stand."""

    text: str
    spans: Spans


class TemplateEncoder:
    """Makes tokens of pairs. Threads may share one.

    Args:
        tokenizer: pads nothing and cuts nothing.
        template: what stands around the two texts.
        side: the end that long documents and queries lose, "right" or "left".

    Raises:
        SessionError: the tokenizer may take endless time for a text.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template, side: str = RIGHT) -> None:
        if (why := slow_pattern(tokenizer)) is not None:
            raise SessionError(
                f"templates need a tokenizer whose time does not explode, and this one's may, due to {why}; give the "
                "model a tokenizer.json without that pattern, or run it on token ids"
            )
        self._tokenizer, self._template, self._side = tokenizer, template, side
        self.least = len(self.encode([("", "")], None)[0][0])

    def check_room(self, most: int | None) -> None:
        """Refuses a limit that leaves no token for texts.

        Raises:
            SessionError: the template has as many tokens.
        """
        if most is not None and most <= self.least:
            raise SessionError(
                f"--max-length {most}: the model's template has {self.least} tokens of its own, beside query and "
                f"document; pass {self.least + 1} or more"
            )

    def encode(self, pairs: Sequence[tuple[str, str]], most: int | None) -> list[TemplateRow]:
        """For each pair its ids, its types, which are zeros, and whether it was cut.

        Args:
            pairs: queries and documents.
            most: tokens of a pair; None: any number.
        """
        parts_of_pairs = [self._fill(*pair) for pair in pairs]
        texts = [part.text for parts in parts_of_pairs for part in parts]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        rows, at = list[TemplateRow](), 0
        for parts in parts_of_pairs:
            ids = self._cut(parts, encodings[at : at + len(parts)], most)
            count = sum(len(item) for item in encodings[at : at + len(parts)])
            rows.append((ids, [0] * len(ids), len(ids) < count))
            at += len(parts)
        return rows

    def _fill(self, query: str, document: str) -> list[_FieldText]:
        texts, parts = {QUERY: query, DOCUMENT: document}, []
        for pieces in self._template.parts:
            text, spans = "", Spans()
            for piece in pieces:
                begin = len(text)
                text += piece.fill(texts)
                if piece.field:
                    spans[piece.field] = begin, len(text)
            parts.append(_FieldText(text, spans))
        return parts

    def _cut(self, parts: Sequence[_FieldText], encodings: Sequence[Encoding], most: int | None) -> list[int]:
        """The ids of all parts, without what is too many."""
        over = 0 if most is None else sum(map(len, encodings)) - most
        removals_by_part = [set[int]() for _ in parts]
        for field in (DOCUMENT, QUERY):
            for part, encoding, removals in zip(parts, encodings, removals_by_part, strict=True):
                if over > 0 and field in part.spans:
                    begin, end = part.spans[field]
                    own = [at for at, (_, last) in enumerate(encoding.offsets) if begin < last <= end]
                    removed_tokens = own[-over:] if self._side == RIGHT else own[:over]
                    removals.update(removed_tokens)
                    over -= len(removed_tokens)
        return [
            item
            for encoding, removals in zip(encodings, removals_by_part, strict=True)
            for at, item in enumerate(encoding.ids)
            if at not in removals
        ]
