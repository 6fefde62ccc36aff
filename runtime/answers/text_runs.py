# SPDX-License-Identifier: Apache-2.0
"""Runs of texts' tokens, in chunks, and their results as an array, or as a row for each text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from padfree.contract.metadata import OutputInfo

from ..chunks import OnChunk, chunks
from ..errors import SessionError
from ..prefixes import order_of_runs
from ..request import RaggedBatch, in_order, read_packed
from ..rows import Array
from ..session import Session
from ..texts import PackedTexts, TextReader
from .scores import Floats

Values = Mapping[str, Any]
OnTokens = Callable[[TextReader, PackedTexts], object]
"""Called with the tokens of all texts of a call, before they run."""


class TextRuns:
    """Runs a model on tokens of texts.

    Args:
        session: runs the model.
        reader: made the tokens.
        shown_path: what the model is called in messages.
        on_tokens: is called with the tokens of all texts of a call before they run.
        on_chunk: is called after every chunk of texts that has run, with its numbers of texts and tokens.
    """

    def __init__(
        self, session: Session, reader: TextReader, shown_path: str, on_tokens: OnTokens, on_chunk: OnChunk
    ) -> None:
        self._session, self._reader, self._shown_path = session, reader, shown_path
        self._on_tokens, self._on_chunk = on_tokens, on_chunk

    def rows(self, output: OutputInfo, tokens: PackedTexts, inputs: Values) -> list[Array]:
        """An output's result for every text, in the order of the texts: [...] each, or [tokens, ...].

        Args:
            output: the output.
            tokens: of all texts.
            inputs: other inputs of the model with a row per text, by name.

        Raises:
            SessionError: the model does not take a text, or an input.
        """
        parts = ((numbers, {output.name: rows}) for numbers, _, rows in self.parts(output, tokens, inputs))
        return in_order(parts, len(tokens.seq_lens)).get(output.name, [])

    def parts(
        self, output: OutputInfo, tokens: PackedTexts, inputs: Values, turns: Array | None = None
    ) -> Iterator[tuple[list[int], RaggedBatch, list[Array]]]:
        """As `rows`, some texts after the other, as they are computed: their numbers, their tokens, their results.

        Texts with smaller `turns`, int64 [B], come before others.
        """
        self._on_tokens(self._reader, tokens)
        if not len(tokens.seq_lens):
            return
        ragged = read_packed({**tokens.columns, **inputs}, tokens.seq_lens, self._session.metadata)
        order = order_of_runs(ragged, self._session.metadata)
        if turns is not None:
            order = order[np.argsort(turns[order], kind="stable")]
        for chunk in chunks(self._session, ragged.seq_lens[order].tolist()):
            batch = ragged.take(order[chunk])
            rows = self._session.run_ragged(batch)[output.name]
            self._on_chunk(batch.seq_lens.size, int(batch.seq_lens.sum()))
            yield order[chunk].tolist(), batch, rows

    def array(self, output: OutputInfo, tokens: PackedTexts, inputs: Values) -> Floats:
        """As `rows`, as one array: float32 [B, ...].

        Raises:
            SessionError: as `rows`, or numbers are not finite.
        """
        rows = self.rows(output, tokens, inputs)
        width = [size or 0 for size in (output.shape or ())[1:]]
        values = np.stack(rows).astype(np.float32) if rows else np.zeros((0, *width), np.float32)
        self.check_finite([values])
        return values

    def check_finite(self, arrays: Sequence[Floats]) -> None:
        """Raises SessionError for numbers that are not finite."""
        if not all(np.isfinite(values).all() for values in arrays):
            raise SessionError(
                f"{self._shown_path}: gave values that are not finite; look at its precision with padfree compare"
            )
