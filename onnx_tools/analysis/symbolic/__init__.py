# SPDX-License-Identifier: Apache-2.0
"""What is known about a graph's tensors without running it: shapes in B and S, small values, how masks are made."""

from .analysis import Analysis, analyse, constant_of, facts_of_inputs, learn
from .arguments import arguments_with_axes, axes_of_node, axis_of, permutation, slice_arguments, split_sizes
from .expr import (
    COMPARISONS,
    Apply,
    Element,
    Expr,
    Index,
    Number,
    RowSum,
    apply,
    axes_of,
    axis_index,
    evaluate,
    is_constant,
    leaves,
    leaves_of,
    number,
    replace_element,
    substitute,
    uncast,
    whole,
)
from .facts import Facts, InputFacts, Shape, broadcast_expr, broadcast_shape
from .movement import TO_THE_END
from .poly import Atom, Axis, Division, Poly
from .rules import infer

__all__ = [
    "COMPARISONS",
    "TO_THE_END",
    "Analysis",
    "Apply",
    "Atom",
    "Axis",
    "Division",
    "Element",
    "Expr",
    "Facts",
    "Index",
    "InputFacts",
    "Number",
    "Poly",
    "RowSum",
    "Shape",
    "analyse",
    "apply",
    "arguments_with_axes",
    "axes_of",
    "axes_of_node",
    "axis_index",
    "axis_of",
    "broadcast_expr",
    "broadcast_shape",
    "constant_of",
    "evaluate",
    "facts_of_inputs",
    "infer",
    "is_constant",
    "learn",
    "leaves",
    "leaves_of",
    "number",
    "permutation",
    "replace_element",
    "slice_arguments",
    "split_sizes",
    "substitute",
    "uncast",
    "whole",
]
