# SPDX-License-Identifier: Apache-2.0
"""One output of both models over all batches: its numbers that are not padding, and how far they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..analysis import BATCH, BOTH, SLOTS, Layout, TokenRows, fits, packed_rows, padded_dims, token_numbers
from ..errors import VerificationError
from ..files import Array
from .agreement import Scale, measure, row_blocks
from .sample_batches import Batch
from .token_numbers import RELATIVE_TOLERANCE


class DifferError(VerificationError):
    """Raised when both models run but their answers differ; `facts` says where."""

    def __init__(self, facts: str) -> None:
        self.facts = facts
        super().__init__(f"{facts}; please report this; --no-verify skips the check")


class ComparedOutput:
    """The kept numbers of one output in both models, batch by batch."""

    def __init__(self, description: Mapping[str, Any], interface: str) -> None:
        self.name: str = description["name"]
        self.dims = padded_dims(description)
        self._layout: str = description["layout"]
        self._interface = interface
        self._batches: list[tuple[Batch, TokenRows, TokenRows]] = []

    def add(self, batch: Batch, right: Array, actual: Array) -> None:
        """Adds the output of one batch. Raises VerificationError for unexpected shapes and for other texts."""
        if not batch.keeps_first_slot and not {SLOTS, BOTH} & set(self.dims or ()):
            return  # a head that reads the masked first slot cannot be reproduced
        if right.dtype.kind in "OSU":
            if not np.array_equal(right, actual):
                raise DifferError(
                    f"output '{self.name}' holds texts that differ from the original's (batch '{batch.name}', "
                    f"{self._interface} interface)"
                )
            return
        if batch.shared_tokens:
            actual = actual[: len(batch.mask)]  # the last row is the prefix's
        mask = batch.mask
        if batch.has_empty:
            mask = np.stack([np.zeros_like(mask), mask], axis=1).reshape(-1, mask.shape[1])
        is_packed = self._layout == Layout.PACKED
        if not fits(right.shape, self.dims, batch.mask):
            sizes = ", ".join(str(size) for size in self.dims or ())
            raise self._other_shape(batch, f"{list(right.shape)} in the original", f"[{sizes}, ...]")
        a = token_numbers(right, self.dims, batch.mask)
        if is_packed or fits(actual.shape, self.dims, mask):
            b = packed_rows(actual, mask) if is_packed else token_numbers(actual, self.dims, mask)
            if (a.values.shape, a.element) == (b.values.shape, b.element):
                self._batches.append((batch, a, b))
                return
        expected = [len(a.values), *a.element] if is_packed else list(right.shape)
        raise self._other_shape(batch, f"{list(actual.shape)} after rewriting", f"{expected}")

    def _other_shape(self, batch: Batch, actual: str, expected: str) -> VerificationError:
        return DifferError(
            f"output '{self.name}' has shape {actual}, {expected} is expected (batch '{batch.name}', {self._interface} "
            f"interface, layout {self._layout})"
        )

    def largest_difference(self) -> float:
        """Relative to a column's root mean square. Raises VerificationError if it is too large."""
        batches = [item for item in self._batches if item[1].values.size]
        if not batches:
            return 0.0
        scale, worst = measure([a.values for _, a, _ in batches]), 0.0
        for batch, a, b in batches:
            difference, row, column = _largest(scale, a.values, b.values)
            worst = max(worst, difference)
            if not worst <= RELATIVE_TOLERANCE:
                tolerance = RELATIVE_TOLERANCE * scale.size_of(a.values[row, column], column)
                raise DifferError(
                    f"output '{self.name}'{_position(a, row, column)} (batch '{batch.name}'): the original gives "
                    f"{a.values[row, column]:.6g}, the rewritten model {b.values[row, column]:.6g}; allowed is a "
                    f"difference of {tolerance:.3g}"
                )
        return worst


def _largest(scale: Scale, expected: Array, actual: Array) -> tuple[float, int, int]:
    """The largest difference of any number, and its row and column."""
    largest = (-1.0, 0, 0)
    for rows in row_blocks(expected):
        difference = scale.differences(expected[rows], actual[rows])
        row, column = (int(at) for at in np.unravel_index(int(difference.argmax()), difference.shape))
        if float(difference[row, column]) > largest[0]:
            largest = (float(difference[row, column]), rows.start + row, column)
    return largest


def _position(rows: TokenRows, row: int, column: int) -> str:
    names = {BATCH: "sequence", SLOTS: "position", BOTH: "slot"}
    parts = [f", {names.get(axis, 'element')} {int(at)}" for axis, at in zip(rows.axes, rows.indices[row], strict=True)]
    return "".join(parts) + f", element {[int(at) for at in np.unravel_index(column, rows.element or (1,))]}"
