# SPDX-License-Identifier: Apache-2.0
"""Element types: half precision with every cast written out, and what it cannot hold."""

from .element_types import check_element_types, infer_element_types
from .rounding import with_rounding
from .widen import widen

__all__ = [
    "check_element_types",
    "infer_element_types",
    "widen",
    "with_rounding",
]
