# SPDX-License-Identifier: Apache-2.0
"""The findings of a walk through a graph: sizes that are equal, and constants and numbers to be exchanged."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import node_name
from ...analysis.symbolic import Poly, Shape
from .unknowns import Unknowns, ambiguous

Operand = tuple[int, int]  # the node's id, and the position among its inputs


class Findings:
    """What is to be exchanged, with sizes that may still be unknowns, and methods that bind these."""

    def __init__(self, unknowns: Unknowns) -> None:
        self.unknowns = unknowns
        self.axes: dict[Operand, Shape] = {}  # new shapes of constants
        self.numbers: dict[Operand, tuple[Poly, ...]] = {}  # new elements of small integer tensors
        self.views: dict[int, Shape] = {}  # shapes made by gathers that move nothing

    def unify(self, node: gs.Node, first: Poly, second: Poly) -> None:
        """Notes that a node needs two sizes to be the same. Raises RewriteError where they cannot be."""
        self.unknowns.unify(first, second, f"'{node_name(node)}' ({node.op})")

    def is_axis(self, size: Poly) -> bool:
        """Whether the size depends on the batch or the sequence, as far as is known."""
        return bool({"B", "S"} & self.unknowns.resolve(size).atoms())

    def error(self, node: gs.Node, reason: str) -> Exception:
        """The error for a node that does not allow other sizes."""
        return ambiguous(self.unknowns.sizes, f"'{node_name(node)}' ({node.op}) {reason}")
