# SPDX-License-Identifier: Apache-2.0
"""Imports onnxruntime's fused operators: each becomes the standard operators that it stands for."""

from .expand import IMPORTERS, declare_fused, expand_fused, holds_fused, is_fused

__all__ = ["IMPORTERS", "declare_fused", "expand_fused", "holds_fused", "is_fused"]
