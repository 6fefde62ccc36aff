# SPDX-License-Identifier: Apache-2.0
"""Which node is the first to make a tensor whose shape is not known, and what to do about it."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..analysis import argument, is_standard, node_name
from ..analysis.symbolic import Analysis


def unknown_because(analysis: Analysis, tensor: gs.Tensor) -> str:
    """The end of a message on a tensor of unknown shape: ", for ..." with the first node that makes one; or ""."""
    waiting, seen = [tensor], set[int]()
    while waiting:
        for node in waiting.pop().inputs:
            if id(node) in seen:
                continue
            seen.add(id(node))
            unknown = [item for item in node.inputs if isinstance(item, gs.Variable) and analysis[item].shape is None]
            if not unknown:
                return f", for {_sentence(analysis, node)}"
            waiting += unknown
    return ""


def _sentence(analysis: Analysis, node: gs.Node) -> str:
    name = f"'{node_name(node)}' ({node.op})"
    shape = analysis[node.inputs[0]].shape if node.inputs else None
    if not is_standard(node, "Squeeze") or "axes" in node.attrs or argument(node, 1) is not None or shape is None:
        return f"{name} makes it"
    axes = [axis - len(shape) for axis, size in enumerate(shape) if size.constant() == 1]
    sizes = ", ".join(str(size) for size in shape)
    axes_text = ", ".join(map(str, axes)) or "the one that is meant"
    return (
        f"{name} names no axis, and takes away every axis of [{sizes}] that happens to have one element, the batch's "
        f"too: give it axis {axes_text} (in the model: squeeze({axes_text}))"
    )
