# SPDX-License-Identifier: Apache-2.0
"""What is known about a graph's tensors without running it: shapes in B and S, small values, how masks are made."""

from .analysis import Analysis, analyse, facts_of_inputs, learn
from .expr import Apply, Element, Expr, Index, Number, RowSum, evaluate, substitute
from .facts import Facts
from .poly import Axis, Poly

__all__ = [
    "Analysis",
    "Apply",
    "Axis",
    "Element",
    "Expr",
    "Facts",
    "Index",
    "Number",
    "Poly",
    "RowSum",
    "analyse",
    "evaluate",
    "facts_of_inputs",
    "learn",
    "substitute",
]
