# SPDX-License-Identifier: Apache-2.0
"""Brings work on [B*S,E], [S,B,E] and their like onto [B,S,E], where the other passes know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, REORDERINGS, RESHAPES, STANDARD_DOMAINS, Editor, Work, argument, tidy, working
from ...analysis.symbolic import Analysis, axis_of, permutation, split_sizes
from ...match import NoMatch
from ..base import PassResult
from .token_view import View, is_odd
from .token_walk import TokenWalk

NAME = "tokens"


def tokens(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Moves every known operator that reads or makes tokens in another order, or merged, onto tensors [B,S,...].

    For readers that are not known, such tensors are made from the tensors [B,S,...]. Every value stays what it was.
    """
    if not any(is_odd(analysis[tensor].shape) for node in graph.nodes for tensor in node.outputs):
        return PassResult(NAME, 0)
    walk = TokenWalk(Editor(graph), analysis)
    for node in list(graph.nodes):
        rule = _RULES.get(node.op) if node.domain in STANDARD_DOMAINS else None
        if rule is not None:
            walk.visit(node, rule, node.op in REORDERINGS)
    walk.finish()
    tidy(graph)
    return PassResult(NAME, walk.replaced_count)


def _transpose(walk: TokenWalk, node: gs.Node) -> list[View]:
    view = walk.view(node.inputs[0])
    return [replace(view, groups=tuple(view.groups[axis] for axis in permutation(node, len(view.groups))))]


def _reshape(walk: TokenWalk, node: gs.Node) -> list[View]:
    return [walk.apart(walk.view(node.inputs[0]), walk.shape(node.outputs[0]))]


def _identity(walk: TokenWalk, node: gs.Node) -> list[View]:
    return [walk.view(node.inputs[0])]


def _elementwise(walk: TokenWalk, node: gs.Node) -> list[View]:
    """Element-wise: operands are in the order of the result, or have nothing where it has batch and sequence."""
    rank = len(walk.shape(node.outputs[0]))
    views: list[View | None] = []
    for tensor in node.inputs:
        has_shape = not tensor.is_empty() and walk.analysis[tensor].static_shape() is None
        views.append(walk.of_rank(tensor, rank) if has_shape else None)
    wholes = [view for view in views if view is not None and view.is_whole]
    if not wholes:
        raise NoMatch(f"{node.op} has no operand with batch and sequence")
    like = wholes[0]
    widths = [_widths(walk, tensor, view, like) for tensor, view in zip(node.inputs, views, strict=True)]
    if node.op == "PRelu" and views[1] is not None:
        raise NoMatch("PRelu has slopes that differ between tokens")
    sizes = [max(column) for column in zip(*widths, strict=True)]
    inputs: list[gs.Tensor] = []
    for tensor, view, width in zip(node.inputs, views, widths, strict=True):
        if view is not None:
            inputs.append(walk.views.spread(view, width, sizes))
        else:
            inputs.append(tensor if tensor.is_empty() else _operand(walk, tensor, width, sizes))
    rest, groups = list[int](), list[tuple[int, ...]]()
    for axis, size in enumerate(sizes):
        group = [item for item in like.groups[axis] if item < 2]
        if size != 1:
            inner = [index for index, item in enumerate(like.groups[axis]) if item >= 2]
            group.insert(inner[0] if inner else len(group), 2 + len(rest))
            rest.append(size)
        groups.append(tuple(group))
    return [View(walk.add(node, inputs), tuple(rest), tuple(groups))]


def _widths(walk: TokenWalk, tensor: gs.Tensor, view: View | None, like: View) -> list[int]:
    """An operand's sizes along the axes of the result, without batch and sequence. Raises NoMatch in another order."""
    rank = len(like.groups)
    if view is None:
        shape = () if tensor.is_empty() else walk.analysis[tensor].static_shape() or ()
        sizes = [1] * (rank - len(shape)) + list(shape)
        if any(size != 1 and like.tokens(axis) for axis, size in enumerate(sizes)):
            raise NoMatch("an operand without batch and sequence lies along them")
        return sizes
    for axis in range(rank):
        mine, theirs = view.groups[axis], like.groups[axis]
        if view.tokens(axis) == like.tokens(axis):
            order = [item >= 2 for item in mine] == [item >= 2 for item in theirs]
            if view.tokens(axis) and not (order and view.width(axis) == like.width(axis)):
                raise NoMatch("operands have batch and sequence in another order")
        elif view.tokens(axis) or len(theirs) != 1 or view.width(axis) != 1:
            raise NoMatch("operands have batch and sequence in another order")
    return [view.width(axis) for axis in range(rank)]


def _operand(walk: TokenWalk, tensor: gs.Tensor, widths: Sequence[int], sizes: Sequence[int]) -> gs.Tensor:
    """An operand without batch and sequence, as one of [B,S,*rest]."""
    shape = [width for width, size in zip(widths, sizes, strict=True) if size != 1]
    while shape and shape[0] == 1:
        shape.pop(0)
    if tuple(shape) == walk.analysis[tensor].static_shape():
        return tensor
    if isinstance(tensor, gs.Constant):
        return walk.constant(tensor.values.reshape(shape))
    return walk.reshape(tensor, shape)


def _matmul(walk: TokenWalk, node: gs.Node) -> list[View]:
    """x W with one constant matrix W."""
    weight = walk.analysis[node.inputs[1]]
    if not weight.constant or len(weight.static_shape() or ()) != 2:
        raise NoMatch("MatMul has a second operand that is no constant matrix")
    return [_multiply(walk, node, node.inputs[1], (weight.static_shape() or ())[1])]


def _multiply(walk: TokenWalk, node: gs.Node, weight: gs.Tensor, columns: int) -> View:
    view = _with_last(walk, node.inputs[0])
    result = walk.make("MatMul", [view.tensor, weight], node.outputs[0])
    return View(result, (*view.rest[:-1], columns), view.groups)


def _with_last(walk: TokenWalk, tensor: gs.Tensor) -> View:
    """A plain view whose last axis, which is the viewed tensor's last one, holds neither batch nor sequence."""
    view = walk.whole(tensor)
    return walk.axis_of(view, len(view.groups) - 1)[0]


def _gemm(walk: TokenWalk, node: gs.Node) -> list[View]:
    """alpha x W + beta c with one constant matrix W, and with a constant row c, if any."""
    matrix, alpha, beta = node.inputs[1], float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    bias = argument(node, 2)
    if not isinstance(matrix, gs.Constant) or int(node.attrs.get("transA", 0)):
        raise NoMatch("Gemm has a second operand that is no constant matrix")
    shape = () if bias is None else walk.analysis[bias].static_shape()
    if shape is None or any(size != 1 for size in shape[:-1]) or not (bias is None or isinstance(bias, gs.Constant)):
        raise NoMatch("Gemm adds something else than a constant row")
    if int(node.attrs.get("transB", 0)):
        matrix = walk.transpose(matrix)
    view = _multiply(walk, node, matrix, int(matrix.shape[1]))
    result, kind = view.tensor, np.dtype(matrix.dtype)
    if alpha != 1.0:
        result = walk.make("Mul", [result, walk.constant(np.asarray(alpha, kind))], node.outputs[0])
    if isinstance(bias, gs.Constant) and beta != 0.0:
        if beta != 1.0 or len(shape) != 1:
            bias = walk.constant((bias.values * np.asarray(beta, kind)).reshape(-1))
        result = walk.make("Add", [result, bias], node.outputs[0])
    return [View(result, view.rest, view.groups)]


def _last_axis(walk: TokenWalk, node: gs.Node) -> list[View]:
    """A norm or a Softmax over the last axis, or a Softmax over the sequence."""
    rank = len(walk.shape(node.inputs[0]))
    axis = axis_of(node, rank)
    parameters = [walk.analysis[tensor].static_shape() for tensor in node.inputs[1:]]
    if node.op in ("Softmax", "LogSoftmax") and walk.whole(node.inputs[0]).groups[axis] == (_SEQUENCE,):
        view = walk.whole(node.inputs[0])
        return [View(walk.add(node, [view.tensor], {"axis": _SEQUENCE}), view.rest, view.groups)]
    if axis != rank - 1 or any(len(shape or (0, 0)) > 1 for shape in parameters):
        raise NoMatch(f"{node.op} is not over the last axis")
    if any(tensor.outputs for tensor in node.outputs[1:]):
        raise NoMatch(f"{node.op} gives out its statistics")
    view = _with_last(walk, node.inputs[0])
    return [View(walk.add(node, [view.tensor, *node.inputs[1:]], {"axis": -1}), view.rest, view.groups)]


def _gather(walk: TokenWalk, node: gs.Node) -> list[View]:
    """Rows of a constant table, a token of every sequence, or elements along other axes."""
    data, indices = (walk.analysis[tensor] for tensor in node.inputs)
    axis = axis_of(node, data.rank)
    if data.constant and data.static_shape() is not None and axis == 0:
        view = walk.whole(node.inputs[1])
        columns = (data.static_shape() or ())[1:]
        result = walk.add(node, [node.inputs[0], view.tensor])
        start = 2 + len(view.rest)
        groups = (*view.groups, *((start + i,) for i in range(len(columns))))
        return [View(result, (*view.rest, *columns), groups)]
    rows = indices.static_shape()
    if rows is None or len(rows) > 1:
        raise NoMatch("Gather has indices that depend on the inputs")
    whole = walk.whole(node.inputs[0])
    if whole.groups[axis] == (_SEQUENCE,) and not rows:
        result = walk.add(node, [whole.tensor, node.inputs[1]], {"axis": _SEQUENCE})
        return [
            walk.views.of_rows(result, whole.rest, tuple(group for i, group in enumerate(whole.groups) if i != axis))
        ]
    view, index = walk.axis_of(whole, axis)
    result = walk.add(node, [view.tensor, node.inputs[1]], {"axis": index})
    if rows:
        return [View(result, _set(view.rest, index, rows[0]), view.groups)]
    rest = tuple(size for i, size in enumerate(view.rest, 2) if i != index)
    other_groups = [group for i, group in enumerate(view.groups) if i != axis]
    return [View(result, rest, tuple(tuple(item - (item > index) for item in group) for group in other_groups))]


def _set(rest: tuple[int, ...], index: int, size: int) -> tuple[int, ...]:
    return (*rest[: index - 2], size, *rest[index - 1 :])


def _split(walk: TokenWalk, node: gs.Node) -> list[View]:
    facts = [walk.analysis[tensor] for tensor in node.inputs]
    sizes = split_sizes(node, facts)
    if sizes is None:
        raise NoMatch("Split has sizes that are not known")
    view, index = walk.axis_of(walk.whole(node.inputs[0]), axis_of(node, facts[0].rank))
    results = walk.add_multiple(node, [view.tensor, *node.inputs[1:]], {"axis": index})
    return [
        View(result, _set(view.rest, index, size), view.groups) for result, size in zip(results, sizes, strict=True)
    ]


def _slice(walk: TokenWalk, node: gs.Node) -> list[View]:
    axes = walk.analysis.axes_along(node)
    if axes is None or not all(walk.analysis[tensor].constant for tensor in node.inputs[1:]):
        raise NoMatch("Slice has limits or axes that are not known")
    view, indices = _apart(walk, node.inputs[0], axes)
    rest = view.rest
    for axis, index in zip(axes, indices, strict=True):
        size = walk.shape(node.outputs[0])[axis].constant()
        if size is None:
            raise NoMatch("Slice makes an axis of unknown size")
        rest = _set(rest, index, size)
    return [View(walk.along(node, view.tensor, indices), rest, view.groups)]


def _apart(walk: TokenWalk, tensor: gs.Tensor, axes: Sequence[int]) -> tuple[View, list[int]]:
    """A plain view with an axis of its tensor for each of these axes of the viewed tensor, and their indices."""
    view = walk.whole(tensor)
    for axis in axes:
        view, _ = walk.axis_of(view, axis)
    return view, [view.groups[axis][0] for axis in axes]


def _concat(walk: TokenWalk, node: gs.Node) -> list[View]:
    """Tokens side by side, all in one order."""
    axis = axis_of(node, len(walk.shape(node.outputs[0])))
    parts = [walk.axis_of(walk.whole(tensor), axis) for tensor in node.inputs]
    (first, index), total = parts[0], 0
    for view, other in parts:
        if view.groups != first.groups or other != index or _set(view.rest, index, 1) != _set(first.rest, index, 1):
            raise NoMatch("Concat joins tensors of several orders")
        total += view.rest[index - 2]
    result = walk.add(node, [view.tensor for view, _ in parts], {"axis": index})
    return [View(result, _set(first.rest, index, total), first.groups)]


def _reduce(walk: TokenWalk, node: gs.Node) -> list[View]:
    """A reduction over axes that are neither batch nor sequence, or over the sequence alone."""
    axes = walk.analysis.axes_along(node)
    if not axes:
        raise NoMatch(f"{node.op} is over all axes")
    whole = walk.whole(node.inputs[0])
    if [whole.groups[axis] for axis in axes] == [(_SEQUENCE,)]:
        return [_over_sequence(walk, node, whole, axes[0])]
    view, indices = _apart(walk, node.inputs[0], axes)
    rest = view.rest
    for index in indices:
        rest = _set(rest, index, 1)
    groups = [g for i, g in enumerate(view.groups) if i not in axes or int(node.attrs.get("keepdims", 1))]
    return [View(walk.along(node, view.tensor, indices, {"keepdims": 1}), rest, tuple(groups))]


def _over_sequence(walk: TokenWalk, node: gs.Node, view: View, axis: int) -> View:
    """One row per sequence."""
    keepdims = bool(int(node.attrs.get("keepdims", 1)))
    groups = tuple(() if i == axis else group for i, group in enumerate(view.groups) if keepdims or i != axis)
    rows = walk.along(node, view.tensor, [_SEQUENCE], {"keepdims": 0})
    return walk.views.of_rows(rows, view.rest, groups)


_SEQUENCE = 1  # its axis in a view's tensor
_RULES: Mapping[str, Callable[[TokenWalk, gs.Node], list[View]]] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, _elementwise),
        **dict.fromkeys(RESHAPES, _reshape),
        **dict.fromkeys(working(Work.NORM), _last_axis),
        **dict.fromkeys(working(Work.REDUCTION), _reduce),
        "Concat": _concat,
        "Gather": _gather,
        "Gemm": _gemm,
        "Identity": _identity,
        "MatMul": _matmul,
        "Slice": _slice,
        "Split": _split,
        "Transpose": _transpose,
    }
)
