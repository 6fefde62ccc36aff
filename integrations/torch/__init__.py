# SPDX-License-Identifier: Apache-2.0
"""padfree.torch: plans as PyTorch modules, and attention without padding as an operator."""

from padfree.contract.installation import naming_extra

with naming_extra("padfree.torch", "torch"):
    from .attention import varlen_attention
    from .module import Module

__all__ = ["Module", "varlen_attention"]
