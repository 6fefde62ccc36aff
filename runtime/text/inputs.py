# SPDX-License-Identifier: Apache-2.0
"""The inputs of a model that texts fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import InputInfo, Metadata
from padfree.contract.text_inputs import PROMPT_LENGTH

from ..errors import SessionError
from ..rows import Array, ranges
from .encoder import EncodedTexts

ROUND = 32
"""Tables of positions with more rows, two more than a power of two, are those of RoBERTa and its like."""


class TextInputs:
    """Fills a model's inputs with tokens of texts: ids, token types, positions, and lengths of prompts.

    Args:
        metadata: the model's.
        shown_path: the model, for messages.

    Attributes:
        others: inputs with a row per sequence that texts do not give; callers do.
        template: what the model wants around pairs; None: what the tokenizer puts there.
        late: how queries and documents are read, if the model has a vector for every token.

    Raises:
        SessionError: the model reads something of tokens that texts do not give.
    """

    def __init__(self, metadata: Metadata, shown_path: str) -> None:
        self.template = None if metadata.text is None else metadata.text.template
        self.late = None if metadata.text is None else metadata.text.late
        self._ids, self._types = metadata.ids_input(), metadata.types_input()
        self._positions = metadata.positions_input()
        if self._ids.holds_embeddings or self._ids.width is not None:
            raise SessionError(
                f"{shown_path}: has no input of token ids, only '{self._ids.name}'; export the model with input_ids"
            )
        names = (self._ids, self._types, self._positions)
        unknown_input = next((item for item in metadata.token_inputs() if item not in names), None)
        if unknown_input is not None:
            raise SessionError(
                f"{shown_path}: texts do not give the model's input '{unknown_input.original_name}', only ids, token "
                "types and positions; export the model without it, or run it on token ids"
            )
        if self._positions is not None and _begin_later(self._positions.limit):
            raise SessionError(
                f"{shown_path}: the table of '{self._positions.original_name}' has {self._positions.limit} rows, "
                "like RoBERTa's, whose positions begin at 2, and padfree cannot tell where this model's begin; export "
                "the model without that input, so that it counts positions itself, or run it on token ids with their "
                "positions"
            )
        per_sequence = [item for item in metadata.inputs if item.role == "per_sequence"]
        self._prompts = next((item for item in per_sequence if item.original_name == PROMPT_LENGTH), None)
        self.others = tuple(item for item in per_sequence if item is not self._prompts)

    @property
    def unfilled(self) -> tuple[str, ...]:
        """The model's own names of the inputs that callers give."""
        return tuple(item.name for item in self.others)

    @property
    def leaves_out_prompts(self) -> bool:
        """Whether the model wants to know how long prompts are."""
        return self._prompts is not None

    @property
    def types_name(self) -> str | None:
        """The name in the original model of the input of token types."""
        return None if self._types is None else self._types.original_name

    def token_columns(self, encoded: EncodedTexts) -> dict[str, Array]:
        """Input name in the original model -> int32 [T], in the model's order where that matters."""
        columns = {self._ids.original_name: encoded.ids}
        if self._types is not None:
            columns[self._types.original_name] = encoded.types
        if self._positions is not None:
            columns[self._positions.original_name] = positions_of(encoded.seq_lens)
        return columns

    @property
    def token_names(self) -> tuple[str, ...]:
        """Names in the original model of the token inputs, as `token_columns` gives them."""
        items = (self._ids, self._types, self._positions)
        return tuple(item.original_name for item in items if item is not None)

    @property
    def own_names(self) -> tuple[str, ...]:
        """The model's own names of the inputs that texts fill: of tokens, then of sequences."""
        items = (self._ids, self._types, self._positions, self._prompts)
        return tuple(item.name for item in items if item is not None)

    @property
    def sequence_names(self) -> tuple[str, ...]:
        """Names in the original model of the inputs with a number per sequence, as `columns` gives them."""
        return () if self._prompts is None else (self._prompts.original_name,)

    def columns(self, encoded: EncodedTexts, prompt_tokens: int = 0) -> dict[str, Array]:
        """As token_columns, and int32 [B] for inputs of sequences.

        Args:
            encoded: tokens of texts with their prompt.
            prompt_tokens: how many of them are the prompt's, see `TextEncoder.prompt_tokens`.
        """
        columns = self.token_columns(encoded)
        if self._prompts is not None:
            columns[self._prompts.original_name] = np.full(encoded.seq_lens.size, prompt_tokens, np.int32)
        return columns

    def rows(self, encoded: EncodedTexts, prompt_tokens: int = 0) -> dict[str, list[Any]]:
        """As `columns`, with a list of integers per text, as `Session.run` takes them."""
        lists: dict[str, list[Any]] = {
            name: [row.tolist() for row in encoded.rows(values)] for name, values in self.token_columns(encoded).items()
        }
        if self._prompts is not None:
            lists[self._prompts.original_name] = [prompt_tokens] * encoded.seq_lens.size
        return lists


def _begin_later(rows: int | None) -> bool:
    """Whether a table of positions has two rows more than a round number, as those whose first rows are padding's."""
    return rows is not None and rows > ROUND and (rows - 2) & (rows - 3) == 0


def as_columns(items: Sequence[InputInfo], values: Mapping[str, Array]) -> list[Array]:
    """Values [B] or [B, N] of inputs with a row per sequence, as int32 [B] each; `of_columns` takes them back."""
    wide = [values[item.name].reshape(-1, item.width or 1).view(np.int32) for item in items]
    return [np.ascontiguousarray(column) for array in wide for column in array.T]


def of_columns(items: Sequence[InputInfo], columns: Sequence[Array]) -> dict[str, Array]:
    """What `as_columns` was given."""
    inputs, at = dict[str, Array](), 0
    for item in items:
        width = item.width or 1
        array = np.stack(columns[at : at + width], axis=1)
        array = array.view(np.float32) if item.holds_floats else array
        inputs[item.name] = array.reshape(-1, *item.trailing_shape)
        at += width
    return inputs


def column_count(items: Sequence[InputInfo]) -> int:
    """How many columns `as_columns` makes."""
    return sum(item.width or 1 for item in items)


def positions_of(seq_lens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """0, 1, 2, ... for the tokens of each text, int32 [T]."""
    return ranges(np.zeros_like(seq_lens), seq_lens).astype(np.int32)
