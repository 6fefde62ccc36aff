# SPDX-License-Identifier: Apache-2.0
"""What attention that stays padded tells about masks: which input masks its keys, and which reach its scores at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import RESHAPES, B, S, argument, is_standard
from ...analysis.symbolic import (
    Analysis,
    Apply,
    Axis,
    Division,
    Element,
    Expr,
    Index,
    Number,
    Poly,
    RowSum,
    Shape,
    apply,
    axis_index,
    axis_of,
    is_constant,
    leaves,
    leaves_of,
    permutation,
)
from ...analysis.symbolic.bounds import Bounds, bounds, bounds_by_cases
from .. import NoMatch
from ..chains import before_bounds, scale_of
from ..values import Keeping, domain_of, is_binary, keeping
from .mask import VERY_NEGATIVE, TableRows

_GEMM_OPERATORS = ("MatMul", "Einsum", "Gemm", "Conv", "MatMulInteger", "QLinearMatMul")
_RELATIONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sub")
_ON_WEIGHTS = ("Cast", "Dropout", "Identity", "Mul", "Where")
_SAME_KEYS = RESHAPES | {"Expand"}


def scores_of(node: gs.Node) -> gs.Tensor | None:
    """What a Softmax reads, or the mask of an Attention operator, if it has one."""
    return argument(node, 3) if is_standard(node, "Attention") else node.inputs[0]


def inputs_in_scores(analysis: Analysis, node: gs.Node) -> set[str]:
    """The inputs that reach the scores of an attention otherwise than through GEMMs, as a mask does.

    Sizes do not count, nor do rows of tables, which are no numbers that a mask is made of. Running sums and what is
    compared between a query and a key, as positions and segments are, say nothing of the key alone.
    """
    start = scores_of(node)
    return _inputs_in(analysis, [] if start is None else [start])


def inputs_in_weights(analysis: Analysis, node: gs.Node) -> set[str]:
    """The inputs that an attention's weights are multiplied by, or chosen by, between the Softmax and the product."""
    sources, waiting, seen = set[str](), [] if is_standard(node, "Attention") else [node.outputs[0]], set[int]()
    while waiting:
        weights = waiting.pop()
        for reader in weights.outputs:
            if id(reader) not in seen and is_standard(reader, *_ON_WEIGHTS) and not is_gemm(analysis, reader):
                seen.add(id(reader))
                sources |= _inputs_in(analysis, [item for item in reader.inputs if item is not weights])
                waiting += reader.outputs
    return sources


def inputs_in_running_sums(analysis: Analysis, node: gs.Node) -> set[str]:
    """The inputs whose running sums reach the scores: where several sequences lie in one row, they tell these apart."""
    start = scores_of(node)
    waiting: list[tuple[gs.Tensor, bool]] = [] if start is None else [(start, False)]
    sources, seen = set[str](), set[tuple[int, bool]]()
    while waiting:
        tensor, is_summed = waiting.pop()
        if (id(tensor), is_summed) in seen:
            continue
        seen.add((id(tensor), is_summed))
        if is_summed and not tensor.inputs and isinstance(tensor, gs.Variable):
            sources.add(str(tensor.name))
        for maker in tensor.inputs:
            if not (is_standard(maker, "Shape", "Size") or is_gemm(analysis, maker)):
                waiting += [(item, is_summed or is_standard(maker, "CumSum")) for item in maker.inputs]
    return sources


def _inputs_in(analysis: Analysis, tensors: list[gs.Tensor]) -> set[str]:
    """The inputs that reach tensors [..., queries, keys] as masks do."""
    names, seen, waiting = set[str](), set[int](), tensors
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        expr = analysis[tensor].expr
        if expr is not None:
            query = axis_index((analysis[tensor].rank or 0) - 2)  # the query's own element says nothing of keys
            mask_leaves = [leaf for leaf in leaves(expr) if isinstance(leaf, (Element, RowSum))]
            sources = {leaf.source for leaf in mask_leaves if isinstance(leaf, RowSum) or leaf.indices[-1] != query}
            names |= {source for source in sources if not _is_relative(expr, source)}
            continue
        for maker in tensor.inputs:
            if is_standard(maker, "Shape", "Size", "CumSum") or is_gemm(analysis, maker) or _is_look_up(maker):
                continue
            waiting += list(maker.inputs)
    return names


def _is_relative(expr: Expr, source: str) -> bool:
    """Whether different elements of an input are compared with each other, and nothing else is made of them."""
    if not isinstance(expr, Apply):
        return not (isinstance(expr, (Element, RowSum)) and expr.source == source)
    elements = {leaf for leaf in leaves_of(expr, Element) if leaf.source == source}
    if expr.op in _RELATIONS and len(elements) > 1:
        return True
    return all(_is_relative(arg, source) for arg in expr.args)


def is_gemm(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node multiplies hidden states: not tensors that are known from the inputs alone, as masks are."""
    is_multiple = is_standard(node, *_GEMM_OPERATORS) and len(node.inputs) > 1
    return is_multiple and any(analysis[tensor].expr is None for tensor in node.inputs)


def _is_look_up(node: gs.Node) -> bool:
    """Whether a node takes rows of a table of numbers, none of which hides a key."""
    table = node.inputs[0] if is_standard(node, "Gather") else None
    if not isinstance(table, gs.Constant) or not np.issubdtype(table.dtype, np.floating):
        return False
    return bool(table.values.size) and float(table.values.min()) > VERY_NEGATIVE


def keys_masked_by(analysis: Analysis, node: gs.Node, tensor: gs.Tensor, rows: TableRows) -> Keeping | None:
    """The rule by which an input alone keeps keys of an attention, whatever else masks them; None where there is none.

    Keys of the other values get a score so low that their weight is 0: for every query, head and position.
    """
    start, source = scores_of(node), str(tensor.name)
    if start is None or not _is_over_last_axis(analysis, node):
        return None
    truth = is_standard(node, "Attention") and analysis[start].dtype == "bool"
    exprs: list[Expr] = []
    while True:
        domain = domain_of(np.dtype(tensor.dtype).name, rows.get(source), exprs)
        walk = _BoundsWalk(analysis, source, domain.values)
        high = (walk.bounds_at_tokens(start) if truth else walk.scores(start))[1]
        if not walk.elements:
            return None
        if domain.complete or len(exprs) == len(walk.elements):
            break
        exprs = [expr for _, expr in walk.elements]  # whose constants are worth trying
    masked = np.broadcast_to(high == 0 if truth else high <= VERY_NEGATIVE, domain.values.shape)
    try:
        rule = keeping(source, domain, ~masked, masked, all(is_binary(expr, item) for item, expr in walk.elements))
    except NoMatch:
        return None
    sums = any(leaves_of(expr, RowSum) for _, expr in walk.elements)
    return rule if rule.form == "nonzero" or not sums else None


def _is_over_last_axis(analysis: Analysis, node: gs.Node) -> bool:
    rank = analysis[node.inputs[0]].rank or 0
    return is_standard(node, "Attention") or axis_of(node, rank) in (-1, rank - 1)


class _BoundsWalk:
    """Bounds of what is added to the scores of a key, from the Softmax back; unknown scores count as 0.

    `elements` are the mask's elements that were met, each with the expression that it is in.
    """

    def __init__(self, analysis: Analysis, source: str, values: npt.NDArray[np.int64]) -> None:
        self.elements: list[tuple[Element, Expr]] = []
        self._analysis = analysis
        self._source = source
        self._values = values
        self._bounds: dict[int, Bounds] = {}

    def scores(self, tensor: gs.Tensor) -> Bounds:
        """Bounds of what a float tensor [..., keys] adds to the scores."""
        if id(tensor) not in self._bounds:  # otherwise chains of x + x would be walked again and again
            self._bounds[id(tensor)] = self._scores(tensor)
        return self._bounds[id(tensor)]

    def _scores(self, tensor: gs.Tensor) -> Bounds:
        elements = self._own_elements(tensor)
        if elements is not None:
            return self._sum(elements[0], elements[1])
        node = tensor.inputs[0] if tensor.inputs else None
        if node is None:
            return _nothing()
        if is_standard(node, "Cast", "Identity", "Dropout") or self._moves(node):
            return self.scores(node.inputs[0])
        if is_standard(node, "Add", "Sub"):
            one, two = (self.scores(item) for item in node.inputs)
            return _add(one, two) if node.op == "Add" else _add(one, (-two[1], -two[0]))
        if is_standard(node, "Where"):
            test, one, two = (
                self.bounds_at_tokens(node.inputs[0]),
                self.scores(node.inputs[1]),
                self.scores(node.inputs[2]),
            )
            low, high = (
                np.where(test[0] > 0, a, np.where(test[1] > 0, pick(a, b), b))
                for a, b, pick in zip(one, two, (np.minimum, np.maximum), strict=True)
            )
            return low, high
        free = before_bounds(self._analysis, tensor)
        if free is not None:
            return self.scores(free)
        scaled = scale_of(self._analysis, tensor)
        if scaled is not None and scaled[1] > 0:
            low, high = self.scores(scaled[0])
            return low * scaled[1], high * scaled[1]
        return _nothing()

    def bounds_at_tokens(self, tensor: gs.Tensor) -> Bounds:
        """Bounds of a boolean tensor [..., keys]: 0 and 1 where nothing is known."""
        elements = self._own_elements(tensor)
        if elements is None:
            return np.asarray(0.0), np.asarray(1.0)
        return bounds_by_cases(elements[0], dict.fromkeys(elements[1], self._values))

    def _moves(self, node: gs.Node) -> bool:
        """Whether a node leaves the keys where they are: along the last axis."""
        if is_standard(node, "Transpose"):
            order = permutation(node, self._analysis[node.inputs[0]].rank or 0)
            return order[-1:] == [len(order) - 1]
        if is_standard(node, "Concat"):  # appends columns to the keys', as attention sinks are
            rank, first = self._analysis[node.outputs[0]].rank or 0, self._analysis[node.inputs[0]].shape or ()
            return axis_of(node, rank) in (-1, rank - 1) and first[-1:] == (S,)
        if not is_standard(node, *_SAME_KEYS):
            return False
        one, two = (self._analysis[item].shape or () for item in (node.inputs[0], node.outputs[0]))
        trailing = 1 if is_standard(node, "Expand", "Squeeze", "Unsqueeze") else 2
        return len(one) > 1 and one[-trailing:] == two[-trailing:]

    def _sum(self, expr: Expr, own: Sequence[Element]) -> Bounds:
        """Bounds of an expression; terms without the mask that are no constants, such as biases, count as 0."""
        if not any(leaf in own for leaf in leaves(expr)):
            return bounds(expr, {}) if is_constant(expr) else _nothing()
        if isinstance(expr, Apply) and expr.op == "Cast" and not expr.dtype.startswith(("int", "uint", "bool")):
            return self._sum(expr.args[0], own)
        if isinstance(expr, Apply) and expr.op in ("Add", "Sub") and not any(is_constant(arg) for arg in expr.args):
            one, two = (self._sum(arg, own) for arg in expr.args)
            return _add(one, two) if expr.op == "Add" else _add(one, (-two[1], -two[0]))
        return bounds_by_cases(expr, dict.fromkeys(own, self._values))

    def _own_elements(self, tensor: gs.Tensor) -> tuple[Expr, list[Element]] | None:
        """The expression of a tensor that is known from the inputs, and the key's elements in it; None for others."""
        facts = self._analysis[tensor]
        if facts.expr is None or facts.shape is None:
            return None
        expr = _of_other_tokens(facts.expr, facts.shape)
        candidates = {leaf for leaf in leaves_of(expr, Element) if leaf.source == self._source}
        own = [element for element in candidates if self._is_own(element, facts.shape)]
        self.elements += [(element, expr) for element in own]
        return expr, own

    def _is_own(self, element: Element, shape: tuple[Poly, ...]) -> bool:
        """Whether the element is that of the key, in the sequence of the scores."""
        rank = len(shape)
        if len(element.indices) != 2 or element.indices[1] != Poly.atom(Axis(rank - 1)):
            return False
        row = element.indices[0]
        if any(row == Poly.atom(Axis(axis)) and shape[axis] == B for axis in range(rank - 1)):
            return True
        for axis in range(rank - 1):  # [B*H,...]
            heads = shape[axis].divided_exactly(B)
            if heads is not None and row == Poly.atom(Division("div", Poly.atom(Axis(axis)), heads)):
                return True
        return False


def _of_other_tokens(expr: Expr, shape: Shape) -> Expr:
    """The expression [..., queries, keys] where query and key are different tokens.

    A masked key that its own query alone sees, as in XLNet, is seen by no kept token.
    """
    if not isinstance(expr, Apply) or len(shape) < 2 or shape[-2:] != (S, S):
        return expr
    if expr.op == "Equal" and all(isinstance(arg, Index) for arg in expr.args):
        one, two = (arg.poly for arg in expr.args if isinstance(arg, Index))
        apart = Poly.atom(Axis(len(shape) - 2)) - Poly.atom(Axis(len(shape) - 1))
        if one - two in (apart, -apart):
            return Number(False, "bool")
    return apply(expr.op, tuple(_of_other_tokens(arg, shape) for arg in expr.args), expr.dtype)


def _add(one: Bounds, two: Bounds) -> Bounds:
    with np.errstate(invalid="ignore"):
        return one[0] + two[0], one[1] + two[1]


def _nothing() -> Bounds:
    return np.asarray(0.0), np.asarray(0.0)
