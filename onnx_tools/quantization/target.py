# SPDX-License-Identifier: Apache-2.0
"""Finds how many GEMMs stay in half precision, of those that lose most, so that a model's outputs keep a cosine."""

from __future__ import annotations

from collections.abc import Callable


def fewest_kept(gemms: int, cosine_of: Callable[[int], float], least: float) -> int | None:
    """The fewest GEMMs that must stay for a cosine; None where one GEMM in 8 bits is one too many.

    Args:
        gemms: how many there are.
        cosine_of: the cosine with so many in half precision; it is asked about log2(gemms) + 1 times.
        least: the cosine that is wanted.
    """
    if cosine_of(0) >= least:
        return 0
    too_few, enough = 0, gemms
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if cosine_of(middle) >= least:
            enough = middle
        else:
            too_few = middle
    return enough if enough < gemms else None
