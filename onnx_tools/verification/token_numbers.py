# SPDX-License-Identifier: Apache-2.0
"""The numbers that belong to tokens and sequences in an output, and whether two models give the same ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..analysis import BATCH, BOTH, SLOTS, Dims, fits, token_numbers
from ..files import Array
from .agreement import measure
from .sample_batches import Batch

# Allowed difference relative to a column's root mean square. Both models compute in float32, with sums of up to a few
# thousand terms in different orders: 6e-6 was measured after the 12 layers of BERT-base, and deeper models may have
# ten times that. A lost bias or residual causes differences of 1e-2 or more.
RELATIVE_TOLERANCE = 2e-4


def rows_of_tokens(values: Array, dims: Dims | None, mask: npt.NDArray[np.bool_]) -> Array | None:
    """The numbers of tokens and sequences in one output; None where it is not known which numbers these are."""
    sizes = set(dims or ())
    texts = {size for size in sizes if isinstance(size, str)}
    is_known = texts <= {BATCH, SLOTS, BOTH} and not (SLOTS in texts and BATCH not in texts)
    if dims is None or not is_known or values.dtype.kind in "OSU" or not fits(values.shape, dims, mask):
        return None
    return token_numbers(values, dims, mask).values


def same_rows(expected: Array | None, actual: Array | None) -> bool:
    """Whether these are the same numbers; it is assumed that they are where either is not known."""
    if expected is None or actual is None:
        return True
    if expected.shape != actual.shape:
        return False
    return not expected.size or bool(measure([expected]).differences(expected, actual).max() <= RELATIVE_TOLERANCE)


def agree(batch: Batch, dims: Sequence[Dims | None], expected: Sequence[Array], actual: Sequence[Array]) -> bool:
    """Whether the kept numbers of all outputs are the same."""
    return all(
        same_rows(*(token_numbers(item, sizes, batch.mask).values for item in (a, b)))
        for sizes, a, b in zip(dims, expected, actual, strict=True)
        if batch.keeps_first_slot or {SLOTS, BOTH} & set(sizes or ())
    )
