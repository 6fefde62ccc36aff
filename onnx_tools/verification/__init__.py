# SPDX-License-Identifier: Apache-2.0
"""Runs the original and the rewritten model side by side in onnxruntime."""

from .agreement import Scale, largest_column_error, measure, typical_row_error
from .compared_output import DifferError
from .half_precision import LARGEST_ERRORS, convert_and_check
from .probe import PaddingIsReadError, UnknownSizesError
from .sample_batches import sample_of
from .token_numbers import RELATIVE_TOLERANCE
from .verify import PaddingMattersError, Verification, verify_assumed, verify_ids

__all__ = [
    "LARGEST_ERRORS",
    "RELATIVE_TOLERANCE",
    "DifferError",
    "PaddingIsReadError",
    "PaddingMattersError",
    "Scale",
    "UnknownSizesError",
    "Verification",
    "convert_and_check",
    "largest_column_error",
    "measure",
    "sample_of",
    "typical_row_error",
    "verify_assumed",
    "verify_ids",
]
