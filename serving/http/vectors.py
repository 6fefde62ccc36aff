# SPDX-License-Identifier: Apache-2.0
"""From the model's rows to what callers asked for: vectors of length 1, fewer dimensions, scores."""

from __future__ import annotations

import numpy as np
from padfree.runtime import Array
from padfree.runtime.answers import Floats

from ..errors import backend_error, validation_error


def floats(values: Array) -> Floats:
    """The rows as float32; an ApiError where they hold what is no number."""
    numbers = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(numbers).all():
        raise backend_error("the model gave values that are not finite; look at its precision with padfree compare")
    return numbers


def shorten(vectors: Floats, dimensions: int | None) -> Floats:
    """The first dimensions of vectors; an ApiError where they have fewer."""
    if dimensions is None:
        return vectors
    if dimensions > vectors.shape[1]:
        raise validation_error(
            f"'dimensions' is {dimensions}, allowed: at most {vectors.shape[1]}, which the model's vectors have"
        )
    return np.ascontiguousarray(vectors[:, :dimensions])
