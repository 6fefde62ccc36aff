# SPDX-License-Identifier: Apache-2.0
"""What a walk through a graph has found: sizes that are equal, and what is to be exchanged."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis.graph import node_name
from ...analysis.symbolic.facts import Shape
from ...analysis.symbolic.poly import Poly
from .unknowns import Unknowns, ambiguous

Operand = tuple[int, int]  # node's id and number of its input


class Findings:
    """What is to be exchanged, in terms of sizes that may still be unknowns, and what binds these."""

    def __init__(self, unknowns: Unknowns) -> None:
        self.unknowns = unknowns
        self.axes: dict[Operand, Shape] = {}  # shapes of constants
        self.numbers: dict[Operand, tuple[Poly, ...]] = {}  # elements of small integer tensors
        self.views: dict[int, Shape] = {}  # gathers that move nothing, and the shapes they give

    def unify(self, node: gs.Node, first: Poly, second: Poly) -> None:
        """Notes that a node needs two sizes to be the same. Raises RewriteError where they cannot be."""
        self.unknowns.unify(first, second, f"'{node_name(node)}' ({node.op})")

    def is_axis(self, size: Poly) -> bool:
        """Whether the size depends on the batch or the sequence, as far as is known."""
        return bool({"B", "S"} & self.unknowns.resolve(size).atoms())

    def error(self, node: gs.Node, reason: str) -> Exception:
        """The error for a node that does not allow other sizes."""
        return ambiguous(self.unknowns.sizes, f"'{node_name(node)}' ({node.op}) {reason}")
