# SPDX-License-Identifier: Apache-2.0
"""Layer norms: on packed tokens, and folded into the GEMMs around them."""

from .norm_folding import norm_folding
from .post_norms import post_norms
from .token_rows import token_rows

__all__ = ["norm_folding", "post_norms", "token_rows"]
