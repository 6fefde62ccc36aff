# SPDX-License-Identifier: Apache-2.0
"""Runs the original and the rewritten model side by side in onnxruntime."""

from .agreement import Scale, largest_column_error, measure, typical_row_error

__all__ = [
    "Scale",
    "largest_column_error",
    "measure",
    "typical_row_error",
]
