# SPDX-License-Identifier: Apache-2.0
"""Arguments of nodes, which are attributes in some opsets and inputs in others, and what they say about axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..onnx_operators import OPERATORS, Movement, Work
from .facts import Facts, InputFacts, Shape
from .movement import volume
from .poly import Poly


def axis_of(node: gs.Node, rank: int | None) -> int:
    """The axis along which a node works, counted from 0 in a tensor of that rank; as it is if that is not known."""
    axis = int(node.attrs.get("axis", OPERATORS[node.op].axis))
    return axis % rank if rank else axis


def permutation(node: gs.Node, rank: int) -> list[int]:
    """The axes of a Transpose's input in the order of its result."""
    return [int(axis) for axis in node.attrs.get("perm") or reversed(range(rank))]


def argument_facts(node: gs.Node, input_facts: InputFacts, position: int) -> Facts | None:
    """What is known of input number `position`; None where it is left out."""
    return input_facts[position] if position < len(input_facts) and not node.inputs[position].is_empty() else None


def axes_of_node(node: gs.Node, input_facts: InputFacts) -> list[int] | None:
    """The axes in a node's attribute (old opsets) or in an input; None where not given or not known."""
    if "axes" in node.attrs:
        return [int(axis) for axis in node.attrs["axes"]]
    position = OPERATORS[node.op].axes
    axes = None if position is None else argument_facts(node, input_facts, position)
    return None if axes is None else axes.plain_integers()


def axes_along(node: gs.Node, input_facts: InputFacts) -> list[int] | None:
    """The axes along which a node works, counted from 0; elements that differ in others are computed alike, and apart.

    They are the first input's, or for operators that add axes the result's. None where they are not given or not known.
    """
    record, rank = OPERATORS[node.op], input_facts[0].rank
    if record.work is Work.GEMM:
        axes: list[int] | None = [-1]
    else:
        axes = axes_of_node(node, input_facts) if record.axis is None else [axis_of(node, None)]
    if axes is None or rank is None:
        return None
    rank += len(axes) if record.adds_axes else 0
    axes = [axis % (rank or 1) for axis in axes]
    return list(range(axes[0], rank)) if record.trailing else axes


def axes_in_result(node: gs.Node, input_facts: InputFacts, output: Facts) -> tuple[int | None, ...]:
    """Where each axis of the first input is in a result, if elements that differ in it are computed alike, and apart.

    Other axes are None. Nothing is said of other inputs, which may have that axis, too. Empty where nothing is known.
    """
    record, (x, *_) = OPERATORS.get(node.op), input_facts
    if record is None or x.shape is None or output.shape is None:
        return ()
    rank, more = len(x.shape), len(output.shape) - len(x.shape)
    if record.moves is Movement.PERMUTED:
        order = permutation(node, rank)
        return tuple(order.index(axis) for axis in range(rank))
    if record.has_axes or record.work is Work.GEMM:
        along = axes_along(node, input_facts)
        if not along or (record.work is Work.GEMM and more > 0):
            return ()
        if record.adds_axes:
            return tuple(axis for axis in range(len(output.shape)) if axis not in along)
        steps = [more * sum(other < axis for other in along) // len(along) for axis in range(rank)]
        return tuple(None if axis in along else axis + step for axis, step in enumerate(steps))
    if record.moves is Movement.VIEW:
        return _axes_of_view(x.shape, output.shape)
    if record.work is Work.ELEMENTWISE or record.moves is Movement.REPEATED:
        return tuple(axis + more if size == output.shape[axis + more] else None for axis, size in enumerate(x.shape))
    return ()


def _axes_of_view(source: Shape, target: Shape) -> tuple[int | None, ...]:
    """An axis stays one where it is as long as before, and so is all that comes ahead of it together."""
    target_axes = {(volume(target[:axis]), size): axis for axis, size in enumerate(target)}
    return tuple(target_axes.get((volume(source[:axis]), size)) for axis, size in enumerate(source))


def arguments_with_axes(
    node: gs.Node, input_facts: InputFacts, axes: Sequence[int]
) -> tuple[dict[str, Any], dict[int, np.ndarray]]:
    """The attributes and the inputs that say along which axes a node works, for these axes instead of its own."""
    record = OPERATORS[node.op]
    if record.axis is not None:
        return {"axis": axes[0]}, {}
    if "axes" in node.attrs:
        return {"axes": list(axes)}, {}
    position = record.axes or 0
    return {}, {position: np.asarray(axes, np.int64).reshape(input_facts[position].static_shape() or ())}


def slice_arguments(
    node: gs.Node, input_facts: InputFacts
) -> tuple[list[Poly], list[Poly], list[int], list[int]] | None:
    """Starts, ends, axes (counted from 0) and steps of a Slice, or None where they are not known."""
    if "starts" in node.attrs:
        starts: list[Poly] | None = [Poly.of(int(value)) for value in node.attrs["starts"]]
        ends: list[Poly] | None = [Poly.of(int(value)) for value in node.attrs["ends"]]
        axes = node.attrs.get("axes")
        steps: list[int] | None = [1] * len(node.attrs["starts"])
    else:
        starts, ends = input_facts[1].integers(), input_facts[2].integers()
        if starts is None or ends is None:
            return None
        own_axes, own_steps = (argument_facts(node, input_facts, position) for position in (3, 4))
        axes = list(range(len(starts))) if own_axes is None else own_axes.plain_integers()
        steps = [1] * len(starts) if own_steps is None else own_steps.plain_integers()
    if starts is None or ends is None or steps is None or not input_facts[0].shape:
        return None
    axes = list(range(len(starts))) if axes is None and "starts" in node.attrs else axes
    if axes is None:
        return None
    return starts, ends, [int(axis) % len(input_facts[0].shape) for axis in axes], steps


def split_sizes(node: gs.Node, input_facts: InputFacts) -> list[int] | None:
    """The sizes of a Split's outputs where they are known integers."""
    if "split" in node.attrs:
        return [int(size) for size in node.attrs["split"]]
    if (sizes := argument_facts(node, input_facts, 1)) is not None:
        return sizes.plain_integers()
    if input_facts[0].shape is None:
        return None
    total, count = input_facts[0].shape[axis_of(node, input_facts[0].rank)].constant(), len(node.outputs)
    if total is None:
        return None
    part = -(-total // count)
    return [part] * (count - 1) + [total - part * (count - 1)]
