# SPDX-License-Identifier: Apache-2.0
"""How a model with a vector for every token reads queries and documents, as ColBERT does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import MOST_INT32, Fields

QUERY, DOCUMENT = "query", "document"
ROLES = (QUERY, DOCUMENT)
"""What a text is to such a model; commands take them as names of prompts."""


@dataclass(frozen=True)
class LateInteraction:
    """What the model's folder says of queries and documents; ids are those of its tokenizer.

    Attributes:
        query_length: most tokens of a query, special tokens and marker included.
        document_length: likewise of a document.
        query_marker: the token that follows a query's first one; None: none does.
        document_marker: likewise of a document.
        expansion: the token that fills queries up to `query_length`; None: they stay as they are.
        skiplist: tokens of documents whose vectors are left out.
    """

    query_length: int
    document_length: int
    query_marker: int | None = None
    document_marker: int | None = None
    expansion: int | None = None
    skiplist: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The object that `parse_late_interaction` reads."""
        return {**vars(self), "skiplist": list(self.skiplist)}


def parse_late_interaction(fields: Fields) -> LateInteraction:
    """Checks and types the entry `late_interaction` of a TextInfo. Raises what `fields` raises."""
    return LateInteraction(
        query_length=fields.integer("query_length", least=1),
        document_length=fields.integer("document_length", least=1),
        query_marker=fields.optional_integer("query_marker"),
        document_marker=fields.optional_integer("document_marker"),
        expansion=fields.optional_integer("expansion"),
        skiplist=fields.integers("skiplist", most=MOST_INT32),
    )
