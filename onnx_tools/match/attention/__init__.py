# SPDX-License-Identifier: Apache-2.0
"""Scores, Softmax and weights: one attention."""

from .attention import Attention

__all__ = ["Attention"]
