# SPDX-License-Identifier: Apache-2.0
"""Element types: half precision with every cast written out, and what it cannot hold."""

from .blocks import exact_product, on_all_cores, row_pieces
from .element_types import check_element_types, infer_element_types
from .halves import to_float
from .precision import convert
from .ranges import surely_fits, unfit_reason
from .rounded_weights import moved_to_keep_sums, round_values
from .rounding import with_rounding
from .widen import HALVES, narrow_outputs, widen

__all__ = [
    "HALVES",
    "check_element_types",
    "convert",
    "exact_product",
    "infer_element_types",
    "moved_to_keep_sums",
    "narrow_outputs",
    "on_all_cores",
    "round_values",
    "row_pieces",
    "surely_fits",
    "to_float",
    "unfit_reason",
    "widen",
    "with_rounding",
]
