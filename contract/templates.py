# SPDX-License-Identifier: Apache-2.0
"""The text that a reranker wants around the two texts that it compares, as text-generating models are prompted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import Fields

QUERY, DOCUMENT = "query", "document"
FIELDS = (QUERY, DOCUMENT)


@dataclass(frozen=True)
class Piece:
    """A part of a template: a text, or, with a `field` of FIELDS, the query or the document.

    `trims` are the ends at which a field loses blanks, "left" and "right".
    """

    text: str = ""
    field: str = ""
    trims: tuple[str, ...] = ()

    def fill(self, texts: Mapping[str, str]) -> str:
        """The text, or the one of `texts` that its field asks for."""
        text = texts[self.field] if self.field else self.text
        text = text.lstrip() if "left" in self.trims else text
        return text.rstrip() if "right" in self.trims else text


@dataclass(frozen=True)
class Template:
    """How two texts become one.

    Attributes:
        parts: lists of pieces; every part is tokenised by itself, one after the other.
    """

    parts: tuple[tuple[Piece, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """The object that `parse_template` reads."""
        parts = [
            {
                "pieces": [
                    {"field": item.field, "trims": list(item.trims)} if item.field else {"text": item.text}
                    for item in part
                ]
            }
            for part in self.parts
        ]
        return {"parts": parts}

    @classmethod
    def of_text(cls, text: str) -> Template:
        """A text with "{query}" and "{document}" in it, tokenised as a whole."""
        pieces = [Piece(text)]
        for field in FIELDS:
            pieces = [new for piece in pieces for new in _split(piece, field)]
        return cls((tuple(pieces),))

    def missing(self) -> tuple[str, ...]:
        """The fields that do not stand in it exactly once."""
        there = [piece.field for part in self.parts for piece in part]
        return tuple(field for field in FIELDS if there.count(field) != 1)


def _split(piece: Piece, field: str) -> Sequence[Piece]:
    """A piece of text as pieces around a field."""
    if piece.field:
        return [piece]
    first, *others = piece.text.split(f"{{{field}}}")
    pieces = [Piece(first)] if first else []
    for text in others:
        pieces += [Piece(field=field), *([Piece(text)] if text else [])]
    return pieces


def parse_template(fields: Fields) -> Template:
    """Checks and types the entry `template` of a TextInfo. Raises what `fields` raises."""
    parts = fields.objects("parts", lambda part: part.objects("pieces", _piece))
    template = Template(parts)
    if missing := template.missing():
        raise fields.fail("parts", f"pieces with one {' and one '.join(missing)}")
    return template


def _piece(item: Fields) -> Piece:
    if "field" not in item:
        return Piece(item.string("text"))
    return Piece(field=item.text("field", FIELDS), trims=item.strings("trims"))
