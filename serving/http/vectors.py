# SPDX-License-Identifier: Apache-2.0
"""From the model's rows to what callers asked for: fewer dimensions, and the types that JSON gets them in."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from padfree.runtime import Array
from padfree.runtime.answers import Floats

from ..errors import backend_error, validation_error

VECTOR_KINDS = ("float", "int8", "uint8", "binary", "ubinary", "base64")
"""What Cohere calls types of numbers in vectors."""
MOST_INT8 = 127


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


def encode(vectors: Floats, kind: str) -> Any:
    """Vectors of length 1, as JSON gets them: a list, or an array [vectors, N], of each.

    Args:
        vectors: float32 [vectors, N].
        kind: "float"; "base64": the bytes of little-endian float32; "int8": the numbers times 127, so that vectors of
            all requests can be compared; "uint8": the same plus 128; "ubinary": a bit for each number, 1 above zero,
            eight to a byte; "binary": these bytes minus 128.
    """
    if kind == "base64":
        return [b64encode(vector.astype("<f4", copy=False)).decode("ascii") for vector in vectors]
    if kind in ("int8", "uint8"):
        integers = np.rint(MOST_INT8 * vectors).clip(-MOST_INT8, MOST_INT8).astype(np.int16)
        return integers.astype(np.int8) if kind == "int8" else (integers + 128).astype(np.uint8)
    if kind in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if kind == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    return list(vectors)
