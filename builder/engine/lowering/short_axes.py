# SPDX-License-Identifier: Apache-2.0
"""Axes of one token in the padded interface: kept away from TensorRT where it computes nothing along them.

TensorRT 10.6 leaves the result of a batched GEMM unwritten where an axis that varies is 1 (S = 1 in Q K^T [B,H,S,S]
and in the GEMM with V): docs/notes/2026-11-22-extent-of-one.md has a network that shows it without any plugin.
In the packed interface, padded nodes have at least two slots (lowering.bound_max_seqlen). In the padded interface S is
the caller's, so operands get a second row and column of zeros, which are cut off again; nothing is added where S is 2
or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

LEAST = 2  # slots

Dims = Sequence[int | str]  # names, or "?", for those that vary


def lengthen_short_axes(model: ModelProto) -> None:
    """Gives GEMMs of two activations LEAST along axes that vary, in place; results keep shapes."""
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = _shapes(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        was_lengthened = None
        if node.op_type == "MatMul" and not node.domain and weights.isdisjoint(node.input):
            was_lengthened = _matmul(node, shapes)
        if was_lengthened is None:
            nodes.append(node)
        else:
            nodes += was_lengthened.nodes
            model.graph.initializer.extend(was_lengthened.numbers)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _shapes(model: ModelProto) -> dict[str, Dims]:
    """The sizes of every tensor whose rank is known."""
    shapes: dict[str, Dims] = {}
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            shapes[value.name] = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim
            ]
    for node in model.graph.node:  # casts of half precision are not listed
        if node.op_type == "Cast" and node.input[0] in shapes:
            shapes.setdefault(node.output[0], shapes[node.input[0]])
    return shapes


def _matmul(node: NodeProto, shapes: Mapping[str, Dims]) -> _NewNodes | None:
    """The GEMM [..., M, K] x [..., K, N] with padded operands and the result cut back; None where none varies."""
    (a, b), result = node.input, node.output[0]
    of_a, of_b = shapes.get(a, ()), shapes.get(b, ())
    if min(len(of_a), len(of_b)) < 3:
        return None
    m, k, n = (isinstance(size, str) for size in (of_a[-2], of_a[-1], of_b[-1]))
    if not (m or k or n):
        return None
    nodes = _NewNodes(f"{result}_lengthened")
    first = nodes.longer(a, len(of_a), [axis for axis, varies in ((-2, m), (-1, k)) if varies], "left")
    right = nodes.longer(b, len(of_b), [axis for axis, varies in ((-2, k), (-1, n)) if varies], "right")
    ends = {max(len(of_a), len(of_b)) + axis: nodes.size(tensor, rank, axis) for tensor, rank, axis, varies in
            ((a, len(of_a), -2, m), (b, len(of_b), -1, n)) if varies}  # fmt: skip
    nodes.cut(node, [first, right], ends)
    return nodes


class _NewNodes:
    """Nodes and numbers that are made for one node, under names of its own."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self.nodes: list[NodeProto] = []
        self.numbers: list[TensorProto] = []

    def op(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Adds a node; returns its result."""
        result = f"{self._stem}_{name}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], name=result, **attributes))
        return result

    def number(self, name: str, values: Sequence[int]) -> str:
        """int64 [len(values)]."""
        result = f"{self._stem}_{name}"
        if all(tensor.name != result for tensor in self.numbers):
            self.numbers.append(numpy_helper.from_array(np.asarray(values, np.int64), result))
        return result

    def size(self, tensor: str, rank: int, axis: int) -> str:
        """int64 [1]: the size along an axis, counted from the end."""
        axis_index, name = rank + axis, f"size_{tensor}_{-axis}"
        if any(node.name == f"{self._stem}_{name}" for node in self.nodes):
            return f"{self._stem}_{name}"
        shape = self.op("Shape", [tensor], f"{name}_shape")
        return self.op(
            "Slice",
            [
                shape,
                self.number(f"at_{axis_index}", [axis_index]),
                self.number(f"at_{axis_index + 1}", [axis_index + 1]),
            ],
            name,
        )

    def cut(self, node: NodeProto, operands: Sequence[str], ends: Mapping[int, str]) -> None:
        """Adds the node with other operands; its result ends at `ends`, sizes by axis."""
        longer = NodeProto()
        longer.CopyFrom(node)
        del longer.input[:]
        longer.input.extend(operands)
        self.nodes.append(longer)
        if not ends:
            return
        result, longer.output[0] = node.output[0], self._stem
        starts, axes = self.number("starts", [0] * len(ends)), self.number("axes", list(ends))
        sliced = [self._stem, starts, self.op("Concat", list(ends.values()), "ends", axis=0), axes]
        self.nodes.append(helper.make_node("Slice", sliced, [result], name=f"{result}_cut"))

    def longer(self, tensor: str, rank: int, axes: Sequence[int], name: str) -> str:
        """The tensor with zeros after those of the axes that are short."""
        least, none = self.number("least", [LEAST]), self.number("none", [0])
        pads = [none] * (2 * rank)
        for axis in axes:
            lacks = self.op("Sub", [least, self.size(tensor, rank, axis)], f"{name}_lacks_{-axis}")
            pads[axis] = self.op("Max", [lacks, none], f"{name}_pad_{-axis}")
        return self.op("Pad", [tensor, self.op("Concat", pads, f"{name}_pads", axis=0)], name) if axes else tensor
