# SPDX-License-Identifier: Apache-2.0
"""Arguments of nodes, which are attributes in some opsets and inputs in others."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from .facts import InputFacts
from .poly import Poly


def axes_of_node(node: gs.Node, input_facts: InputFacts, position: int) -> list[int] | None:
    """The axes in a node's attribute (old opsets) or in input `position`; None where not given or not known."""
    if "axes" in node.attrs:
        return [int(axis) for axis in node.attrs["axes"]]
    if position < len(input_facts) and not node.inputs[position].is_empty():
        return input_facts[position].plain_integers()
    return None


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
        has_input = len(input_facts) > 3 and not node.inputs[3].is_empty()
        axes = input_facts[3].plain_integers() if has_input else list(range(len(starts)))
        has_input = len(input_facts) > 4 and not node.inputs[4].is_empty()
        steps = input_facts[4].plain_integers() if has_input else [1] * len(starts)
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
    if len(input_facts) > 1 and not node.inputs[1].is_empty():
        return input_facts[1].plain_integers()
    if input_facts[0].shape is None:
        return None
    total, count = input_facts[0].shape[int(node.attrs.get("axis", 0))].constant(), len(node.outputs)
    if total is None:
        return None
    part = -(-total // count)
    return [part] * (count - 1) + [total - part * (count - 1)]
