# SPDX-License-Identifier: Apache-2.0
"""Options of a quantisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RewriteError
from .formats import E4M3, Format

LEAST_MARGIN, MOST_MARGIN = 1.0, 64.0
MARGIN = E4M3.margin
"""Room above the largest number of the calibration data; scales of e4m3 are powers of two, so that it is 2 to 4 times.

e4m3 keeps 3 bits of every number from 2^-6 to 448: room costs nothing until the smallest ones fall below that, while a
number that is cut off ruins its row. Retrieval with MiniLM and mpnet is the same with any room up to 64 times."""
LARGEST_LOSS = 0.1
"""The largest loss of a GEMM's result, relative to its norm. Rounding both factors to 3 bits costs 0.037 of a sum of
terms that are as often below zero as above; MiniLM's and mpnet's GEMMs lose 0.01 to 0.047 (docs/guide/fp8.md)."""

LARGEST_STREAM_LOSS = 0.05
"""The largest loss of a GEMM that reads a stream; above it the norms ahead of layers stay operators of their own, which
takes longer. A stream in e4m3 has one scale for all rows, and some rows may be so long that the others are left with
fewer bits."""
LARGEST_NORM_LOSS = 0.06
"""The same in int8 for any GEMM that folds a norm. MiniLM and bge-small lose 0.05 in such GEMMs and keep cosines of
0.997 and 0.998; mpnet loses 0.14."""


@dataclass(frozen=True)
class QuantizationOptions:
    """Scales and layers.

    Attributes:
        margin: room above the largest number of the calibration data, 1 to 64; None: what is usual for the format.
        keep: patterns of names (`*`, `?`, `[...]`) of GEMMs that stay in half precision.
        quantize: patterns of names; where there are any, all other GEMMs stay in half precision.
        largest_loss: GEMMs whose results are off by more than this, relative to their norm, stay in half precision.
        least_cosine: GEMMs stay in half precision, those that lose most per token first, until outputs have at least
            this cosine to those in half precision, averaged over sequences; None: whatever it is.
        number_format: the type of 8 bits.

    Raises:
        RewriteError: a number is out of range.
    """

    margin: float | None = None
    keep: tuple[str, ...] = ()
    quantize: tuple[str, ...] = ()
    largest_loss: float = LARGEST_LOSS
    least_cosine: float | None = None
    number_format: Format = E4M3

    @property
    def room(self) -> float:
        """The margin."""
        return self.number_format.margin if self.margin is None else self.margin

    def __post_init__(self) -> None:
        if not (math.isfinite(self.room) and LEAST_MARGIN <= self.room <= MOST_MARGIN):
            raise RewriteError(
                f"the margin is {self.room:g}, allowed: {LEAST_MARGIN:g} to {MOST_MARGIN:g}; leave it out for "
                f"{self.number_format.margin:g}"
            )
        if not (math.isfinite(self.largest_loss) and self.largest_loss > 0):
            raise RewriteError(
                f"the largest loss is {self.largest_loss:g}, allowed: a number above 0; leave it out for "
                f"{LARGEST_LOSS:g}"
            )
        if self.least_cosine is not None and not 0 < self.least_cosine < 1:
            raise RewriteError(
                f"the least cosine is {self.least_cosine:g}, allowed: a number above 0 and below 1, such as 0.995; "
                "leave it out to quantise every GEMM that may be"
            )


AS_MEASURED = QuantizationOptions()
"""The options with which real models were measured to keep their answers."""
