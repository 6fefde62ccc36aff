# SPDX-License-Identifier: Apache-2.0
"""Which values of an input keep a slot, and which distances a window keeps."""

from .mask_values import Domain, Keeping, Mask, domain_of, is_binary, keeping, mask_of, table_rows
from .window import ALL, OPEN, Window, tried_distances, window_of

__all__ = [
    "ALL",
    "OPEN",
    "Domain",
    "Keeping",
    "Mask",
    "Window",
    "domain_of",
    "is_binary",
    "keeping",
    "mask_of",
    "table_rows",
    "tried_distances",
    "window_of",
]
