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

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import Editor, is_standard, made_by, replace_node

LEAST = 2  # slots


def lengthen_short_axes(graph: gs.Graph) -> None:
    """Gives GEMMs of two activations LEAST along axes that vary, in place; results keep shapes."""
    editor = Editor(graph)
    for node in list(graph.nodes):
        if is_standard(node, "MatMul") and not any(isinstance(tensor, gs.Constant) for tensor in node.inputs):
            _lengthen(editor, node)


def _shape(tensor: gs.Tensor) -> Sequence[int | str | None]:
    """The sizes of a tensor, names or None for those that vary; empty where its rank is not known."""
    cast = made_by(tensor, "Cast")  # casts to half precision are made without shapes
    if tensor.shape is None and cast is not None:
        return _shape(cast.inputs[0])
    return tensor.shape or ()


def _lengthen(editor: Editor, node: gs.Node) -> None:
    """Pads the operands of the GEMM [..., M, K] x [..., K, N] and cuts its result, where one of M, K and N varies."""
    a, b = node.inputs
    of_a, of_b = _shape(a), _shape(b)
    if min(len(of_a), len(of_b)) < 3:
        return
    m, k, n = (not isinstance(size, int) for size in (of_a[-2], of_a[-1], of_b[-1]))
    if not (m or k or n):
        return
    new, count = _Lengthening(editor, f"{node.outputs[0].name}_lengthened"), len(editor.graph.nodes)
    left = new.longer(a, len(of_a), [axis for axis, varies in ((-2, m), (-1, k)) if varies])
    right = new.longer(b, len(of_b), [axis for axis, varies in ((-2, k), (-1, n)) if varies])
    ends = {max(len(of_a), len(of_b)) + axis: new.size(tensor, rank, axis) for tensor, rank, axis, varies in
            ((a, len(of_a), -2, m), (b, len(of_b), -1, n)) if varies}  # fmt: skip
    node.inputs = [left, right]
    editor.graph.nodes.append(node)
    if ends:
        result = node.outputs[0]
        node.outputs = [editor.variable(f"{result.name}_long", result.dtype)]
        new.cut(node.outputs[0], ends, result)
    replace_node(editor.graph, node, count)


class _Lengthening:
    """Adds nodes for one GEMM."""

    def __init__(self, editor: Editor, stem: str) -> None:
        self._new = editor.with_stem(stem)
        self._least, self._none = self._new.integers(LEAST), self._new.integers(0)
        self._sizes: dict[tuple[int, int], gs.Tensor] = {}  # by tensor and axis

    def size(self, tensor: gs.Tensor, rank: int, axis: int) -> gs.Tensor:
        """int64 [1]: the size along an axis, counted from the end."""
        key, at = (id(tensor), axis), rank + axis
        if key not in self._sizes:
            limits = self._new.integers(at), self._new.integers(at + 1)
            self._sizes[key] = self._new.op("Slice", self._new.op("Shape", tensor), *limits)
        return self._sizes[key]

    def longer(self, tensor: gs.Tensor, rank: int, axes: Sequence[int]) -> gs.Tensor:
        """The tensor with zeros after those of the axes that are short."""
        pads = [self._none] * (2 * rank)
        for axis in axes:
            lacks = self._new.op("Sub", self._least, self.size(tensor, rank, axis))
            pads[axis] = self._new.op("Max", lacks, self._none)
        return self._new.op("Pad", tensor, self._new.op("Concat", *pads, axis=0)) if axes else tensor

    def cut(self, tensor: gs.Tensor, ends: Mapping[int, gs.Tensor], result: gs.Tensor) -> None:
        """Adds the node that makes `result`, which ends at `ends`, sizes by axis, of a longer tensor."""
        limits = self._new.integers(*([0] * len(ends))), self._new.op("Concat", *ends.values(), axis=0)
        self._new.op("Slice", tensor, *limits, [*ends], output=result)
