# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph without running it: its tensors' shapes, layouts, values and limits."""

from .special_ids import IdRule, with_rules
from .token_elements import (
    BATCH,
    SLOTS,
    Dims,
    MaskArray,
    dims_of,
    fits,
    packed_rows,
    padded_dims,
    token_elements,
    token_numbers,
)

__all__ = [
    "BATCH",
    "SLOTS",
    "Dims",
    "IdRule",
    "MaskArray",
    "dims_of",
    "fits",
    "packed_rows",
    "padded_dims",
    "token_elements",
    "token_numbers",
    "with_rules",
]
