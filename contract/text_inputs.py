# SPDX-License-Identifier: Apache-2.0
"""Which of a model's token inputs hold ids, token types and positions: by the tables that they index, then by names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from .names import OTHER_VALUES, POSITIONS

ID_NAMES = ("input_ids", "input_word_ids", "token_ids", "word_ids", "ids", "tokens")
TYPE_NAMES = ("token_type_ids", "segment_ids", "input_type_ids", "type_ids", "token_types", "segments", "sentence_ids")
POSITION_NAMES = ("position_ids", "pos_ids", "positions", "position_id")
ZERO_WHEN_MISSING = ("token_type_ids", "segment_ids")
"""Inputs that tokenisers leave out for single texts, and then mean zeros."""
PROMPT_LENGTH = "prompt_length"
"""The input of models that leave prompts out of pooling: how many first tokens of each sequence are not pooled."""
MOST_TYPES = 4
"""The most rows of a table of token types; larger tables are something else."""


class TableInput(Protocol):
    """An input that indexes a table of `limit` rows; None: not known."""

    @property
    def original_name(self) -> str:
        """Its name in the original model."""

    @property
    def limit(self) -> int | None:
        """Rows of the table."""

    @property
    def holds(self) -> str | None:
        """One of names.HELD_ROLES, where the graph proves it."""


Item = TypeVar("Item", bound=TableInput)


def ids_among(items: Sequence[Item]) -> Item | None:
    """The input of ids: the one named so, unless one named for types indexes a larger table."""
    named_item = next((item for name in ID_NAMES for item in items if item.original_name == name), None)
    if named_item is not None:
        exchanged = [item for item in items if item.original_name in TYPE_NAMES and _rows(item) > _rows(named_item) > 0]
        return exchanged[0] if exchanged and _rows(named_item) <= MOST_TYPES else named_item
    others = [item for item in items if item.original_name not in TYPE_NAMES and not _is_of_positions(item)] or items
    return max(others, key=_rows, default=None)


def types_among(items: Sequence[Item], ids: Item | None) -> Item | None:
    """The input of token types: the one named so, or else the one with so small a table."""
    others = [item for item in items if item is not ids and not _is_of_positions(item) and item.holds != OTHER_VALUES]
    named_item = next((item for name in TYPE_NAMES for item in others if item.original_name == name), None)
    return named_item or next((item for item in others if 0 < _rows(item) <= MOST_TYPES), None)


def positions_among(items: Sequence[Item]) -> Item | None:
    """The input of positions, by the graph before names."""
    items = [item for item in items if item.holds == POSITIONS] or items
    return next((item for item in items if _is_of_positions(item)), None)


def _is_of_positions(item: TableInput) -> bool:
    """What the graph proves, or else whether a word of the name begins with "pos" and the table is not one of types."""
    if item.holds is not None:
        return item.holds == POSITIONS
    words = re.split("[^a-z]+", item.original_name.lower())
    has_word = any(word.startswith("pos") for word in words)
    return item.original_name in POSITION_NAMES or (has_word and not 0 < _rows(item) <= MOST_TYPES)


def _rows(item: TableInput) -> int:
    return item.limit or 0
