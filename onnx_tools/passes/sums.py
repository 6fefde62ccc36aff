# SPDX-License-Identifier: Apache-2.0
"""Sums, maxima and softmax over the tokens of a sequence, where masked slots have no part in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import B, Editor, S, is_output, is_standard, node_name, token_axis
from ..analysis.symbolic import Analysis, Facts, Poly, Shape, axis_of
from ..match import Miss, NoMatch
from ..match.masks import LOWEST, VERY_NEGATIVE, SlotValues
from ..match.values import mask_of
from .base import PassResult, boundary_of, pack_tokens, pool_tokens

NAME = "sums"
_SUMS = ("ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare")


def sums(padded: bool) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass that reduces packed tokens over their sequence: by PadfreePool, and from the lengths.

    It runs after the pooling pass, which replaces whole means. `padded`: in the padded interface, masks may have holes.
    """

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        work = _Sums(graph, analysis)
        replaced_count, misses = 0, list[Miss]()
        for node in list(graph.nodes):
            if work.may_reduce(node):
                reason = work.visit(node)
                replaced_count += reason is None
                misses += [Miss(node_name(node), reason)] if reason is not None else []
            elif not padded and work.finds_first(node):
                work.write_first(node)
                replaced_count += 1
        return PassResult(NAME, replaced_count, tuple(misses))

    return run


class _Sums:
    """Rewrites the nodes of one graph."""

    def __init__(self, graph: gs.Graph, analysis: Analysis) -> None:
        self._editor = Editor(graph)
        self._analysis = analysis
        self._boundary = boundary_of(graph)
        self._mask = mask_of(analysis[self._boundary.mask])
        self._values = SlotValues(analysis, self._mask)

    def may_reduce(self, node: gs.Node) -> bool:
        """Whether a node reduces something over the sequence alone."""
        if is_standard(node, "MatMul"):
            return self._is_weighted_sum(node)
        x = self._analysis[node.inputs[0]] if node.inputs else Facts()
        number = (x.dtype or "").startswith(("float", "bfloat"))
        counts = is_standard(node, "ReduceSum") and self._values.outcomes(node.inputs[0]) is not None
        if token_axis(x.shape) is None or not (number or counts):
            return False
        if not is_standard(node, *_SUMS, "LogSoftmax", "ReduceMax", "ReduceMean", "Softmax"):
            return False
        return self._analysis.axes_along(node) == [token_axis(x.shape)]

    def finds_first(self, node: gs.Node) -> bool:
        """Whether an ArgMax finds the first slot that the mask keeps."""
        if not is_standard(node, "ArgMax") or int(node.attrs.get("select_last_index", 0)):
            return False
        facts = self._analysis[node.inputs[0]]
        both = self._values.outcomes(node.inputs[0])
        return facts.rank == 2 and axis_of(node, 2) == 1 and both is not None and both[0] > both[1]

    def write_first(self, node: gs.Node) -> None:
        """Writes slot 0 for every sequence, which is its first kept slot in the packed interface."""
        lengths, editor = self._boundary.seq_lens, self._editor
        zeros = editor.op("Sub", lengths, lengths, stem="first_slots")
        self._finish(node, editor.cast(zeros, np.int64, "first_slots"), 1)

    def visit(self, node: gs.Node) -> str | None:
        """Rewrites a node that `may_reduce`; returns the reason where that cannot be done."""
        try:
            if is_standard(node, "MatMul"):
                self._weight(node)
            elif is_standard(node, "Softmax", "LogSoftmax"):
                self._softmax(node)
            else:
                self._reduction(node)
        except NoMatch as reason:
            return str(reason)
        return None

    def _reduction(self, node: gs.Node) -> None:
        x = node.inputs[0]
        axis, value = token_axis(self._analysis[x].shape) or 1, self._values.at_masked(x)
        if is_standard(node, "ReduceMean"):
            if self._mask.source is not None:
                raise NoMatch(f"'{node_name(node)}' ({node.op}) divides by the padded length")
            self._finish(node, self._pool(x, self._rest(x), "mean", axis), axis)
            return
        if is_standard(node, "ReduceMax"):
            low = value is not None and (value <= LOWEST or (value <= 0.0 and self._values.is_never_negative(x)))
            if not low and self._mask.source is not None:
                raise NoMatch(f"'{node_name(node)}' ({node.op}) may take its maximum from masked slots")
            self._finish(node, self._pool(x, self._rest(x), "max", axis), axis)
            return
        if value != 0.0:
            raise NoMatch(f"'{node_name(node)}' ({node.op}) adds up masked slots that are not known to be 0")
        total = self._total(node, x, axis)
        if total is not None and is_standard(node, "ReduceL2"):
            total = self._nodes(x).op("Sqrt", total)
        if total is not None:
            self._finish(node, total, axis)

    def _total(self, node: gs.Node, x: gs.Tensor, axis: int) -> gs.Tensor | None:
        """The sum [B,*rest] of what a node adds up; None where a division after it has been rewritten with it."""
        rest, both, parts = self._rest(x), self._values.outcomes(x), x
        if both is not None:
            number = {"ReduceSum": both[0], "ReduceL1": abs(both[0])}.get(node.op, both[0] ** 2)
            nodes = self._nodes(x)
            product = nodes.op("Mul", self._lengths(x, len(rest) + 1), nodes.scalar(number, self._dtype(x)))
            return product if set(rest) <= {1} else nodes.op("Expand", product, [1, *rest])
        if is_standard(node, "ReduceSumSquare", "ReduceL2"):
            parts = self._nodes(x).op("Mul", x, x)
        elif is_standard(node, "ReduceL1"):
            parts = self._nodes(x).op("Abs", x)
        mean = self._pool(parts, rest, "mean", axis)
        if is_standard(node, "ReduceSum") and self._divide(node, mean, x, axis):
            return None
        return self._nodes(x).op("Mul", mean, self._lengths(x, len(rest) + 1))

    def _divide(self, node: gs.Node, mean: gs.Tensor, x: gs.Tensor, axis: int) -> bool:
        """Writes sum / d as mean * (length / d), which stays in half precision's range; returns whether it did."""
        total = node.outputs[0]
        readers = total.outputs
        if len(readers) != 1 or not is_standard(readers[0], "Div") or is_output(self._editor.graph, total):
            return False
        division, rank = readers[0], self._analysis[total].rank or 0
        if division.inputs[0] is not total or division.inputs[1] is total:
            return False
        if self._analysis[division.outputs[0]].shape != self._analysis[total].shape:
            return False
        share = self._nodes(x).op("Div", self._lengths(x, rank), division.inputs[1])
        if rank != len(self._rest(x)) + 1:
            mean = self._nodes(x).unsqueeze(mean, axis)
        self._editor.op("Mul", mean, share, stem=total.name, output=division.outputs[0])
        division.inputs.clear()
        return True

    def _is_weighted_sum(self, node: gs.Node) -> bool:
        """Whether a MatMul is w [B,1,S] times x [B,S,E], or x [B,E,S] times w [B,S,1]."""
        a, b = (self._analysis[tensor].shape for tensor in node.inputs)
        if a is None or b is None or len(a) != 3 or len(b) != 3 or a[0] != B or b[0] != B or (a[2], b[1]) != (S, S):
            return False
        sides = (a[1].constant(), b[2].constant())
        return 1 in sides and None not in sides

    def _weight(self, node: gs.Node) -> None:
        """Writes a sum of weighted tokens."""
        a, b = (self._analysis[tensor].shape or () for tensor in node.inputs)
        if 0.0 not in [self._values.at_masked(tensor) for tensor in node.inputs]:
            raise NoMatch(f"'{node_name(node)}' (MatMul) adds up masked slots that are not known to be 0")
        transposed = self._nodes(node.inputs[0]).op("Transpose", node.inputs[0], perm=[0, 2, 1])
        x = self._nodes(node.inputs[1]).op("Mul", transposed, node.inputs[1])
        rest = [max(a[1].constant() or 1, b[2].constant() or 1)]
        like = node.inputs[1]
        total = self._nodes(like).op("Mul", self._pool(x, rest, "mean", 1), self._lengths(like, 2))
        self._finish(node, total, 1 if a[1].constant() == 1 else 2)

    def _softmax(self, node: gs.Node) -> None:
        """Writes exp(x - max) / sum(exp(x - max)) over the tokens of every sequence, or its logarithm."""
        x = node.inputs[0]
        axis, value = token_axis(self._analysis[x].shape) or 1, self._values.at_masked(x)
        if self._mask.source is not None and (value is None or value > VERY_NEGATIVE):
            raise NoMatch(f"'{node_name(node)}' ({node.op}) gives masked slots a weight above 0")
        rest = self._rest(x)
        largest = self._nodes(x).unsqueeze(self._pool(x, rest, "max", axis), axis)
        shifted = self._nodes(x).op("Sub", x, largest)
        powers = self._nodes(x).op("Exp", shifted)
        mean = self._pool(powers, rest, "mean", axis)
        total = self._nodes(x).op("Mul", mean, self._lengths(x, len(rest) + 1))
        output = node.outputs[0]
        if is_standard(node, "LogSoftmax"):
            logarithm = self._nodes(x).unsqueeze(self._nodes(x).op("Log", total), axis)
            self._editor.op("Sub", shifted, logarithm, output=output)
            return
        whole = self._nodes(x).unsqueeze(total, axis)
        self._editor.op("Div", powers, whole, output=output)
        self._values.know(output, 0.0)

    def _rest(self, tensor: gs.Tensor) -> list[int]:
        """The sizes of a tensor [B,...,S,...] other than batch and sequence."""
        shape: Shape = self._analysis[tensor].shape or ()
        return [size.constant() or 0 for axis, size in enumerate(shape) if axis not in (0, token_axis(shape))]

    def _pool(self, x: gs.Tensor, rest: Sequence[int], mode: str, axis: int) -> gs.Tensor:
        """PadfreePool of a tensor with the batch first and the sequence at `axis`: [B,*rest]."""
        editor, dtype = self._editor, self._dtype(x)
        sizes = [Poly.of(size) for size in rest]
        facts = Facts((B, *sizes[: axis - 1], S, *sizes[axis - 1 :]), dtype.name)
        packed = pack_tokens(editor, x, self._boundary, facts)
        if len(rest) != 1:
            packed = editor.reshape(packed, -1, int(np.prod(rest)))
        pooled = editor.variable("pooled", dtype)
        pool_tokens(editor, packed, self._boundary, pooled, mode)
        return pooled if len(rest) == 1 else self._nodes(x).reshape(pooled, -1, *rest)

    def _finish(self, node: gs.Node, pooled: gs.Tensor, axis: int) -> None:
        """Writes [B,*rest] to a node's output, which may have an axis of size 1 in the sequence's place."""
        keepdims = is_standard(node, "MatMul") or int(node.attrs.get("keepdims", 1))
        if keepdims:
            self._editor.unsqueeze(pooled, axis, output=node.outputs[0])
        else:
            self._editor.op("Identity", pooled, output=node.outputs[0])

    def _lengths(self, like: gs.Tensor, rank: int) -> gs.Tensor:
        """The number of tokens of every sequence [B,1,...], in the type of another tensor."""
        lengths = self._editor.cast(self._boundary.seq_lens, self._dtype(like), "lengths")
        return lengths if rank == 1 else self._nodes(like).reshape(lengths, -1, *([1] * (rank - 1)))

    def _dtype(self, tensor: gs.Tensor) -> np.dtype:
        """The type of a tensor of the graph, or of one that has been made here."""
        name = self._analysis[tensor].dtype
        return np.dtype(tensor.dtype if name is None else name)

    def _nodes(self, like: gs.Tensor) -> Editor:
        """The editor, for nodes that are named like a tensor."""
        return self._editor.with_stem(like.name)
