# SPDX-License-Identifier: Apache-2.0
"""padfree.torch: plans as PyTorch modules, and attention without padding as an operator."""

from .attention import varlen_attention
from .module import Module

__all__ = ["Module", "varlen_attention"]
