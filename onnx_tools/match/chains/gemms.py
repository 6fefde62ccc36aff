# SPDX-License-Identifier: Apache-2.0
"""Which nodes are GEMMs of tokens by a weight, and what is added to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...analysis import B, T, is_padfree, is_standard, node_name, readers_after, used_once
from ...analysis.symbolic import Analysis
from .. import NoMatch

MULTIPLE = 8
"""K and N must be multiples of it, so that rows start at multiples of 16 bytes."""


@dataclass(frozen=True)
class GemmStep:
    """A tensor that a GEMM leads to, what is added on the way, and the nodes that PadfreeLinear makes unnecessary."""

    output: gs.Tensor
    addend: gs.Tensor | None = None
    nodes: tuple[gs.Node, ...] = ()


def is_candidate(analysis: Analysis, node: gs.Node) -> bool:
    """Whether the node multiplies packed tokens [T,K], or first tokens alone [B,K], by a constant."""
    if not is_standard(node, "MatMul") or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = analysis[node.inputs[0]].shape
    if shape is None or len(shape) < 2:
        return False
    return shape[0] == T or (len(shape) == 2 and shape[0] == B and is_of_first_tokens(node))


def check(analysis: Analysis, node: gs.Node, precision: str) -> None:
    """Raises NoMatch where PadfreeLinear does not compute this candidate in a graph of this precision."""
    weight = node.inputs[1]
    if precision != "fp32" and analysis[node.inputs[0]].dtype == "float32":
        raise NoMatch(f"'{node_name(node)}' multiplies numbers that {precision} cannot hold, in float32; bf16 can")
    sizes = [int(size) for size in weight.shape]
    if len(sizes) != 2:
        raise NoMatch(f"'{node_name(node)}' has a weight '{weight.name}' of {len(sizes)} axes instead of 2")
    if any(size % MULTIPLE or not size for size in sizes):
        raise NoMatch(
            f"'{node_name(node)}' multiplies by [{sizes[0]},{sizes[1]}], whose sizes are not multiples of {MULTIPLE}"
        )


def addition(graph: gs.Graph, y: gs.Tensor, fits: Callable[[gs.Tensor], bool]) -> GemmStep:
    """What the only reader of y, an Add, adds to it, if that fits."""
    reader = y.outputs[0] if used_once(graph, y) else None
    if reader is None or not is_standard(reader, "Add"):
        return GemmStep(y)
    other = reader.inputs[1] if reader.inputs[0] is y else reader.inputs[0]
    return GemmStep(reader.outputs[0], other, (reader,)) if fits(other) else GemmStep(y)


def added_bias(graph: gs.Graph, analysis: Analysis, y: gs.Tensor) -> GemmStep:
    """The bias [N] that the only reader of y [T,N], an Add, adds to it."""
    return addition(graph, y, lambda other: is_bias(analysis, other, y))


def is_bias(analysis: Analysis, bias: gs.Tensor, y: gs.Tensor) -> bool:
    """Whether a tensor is a constant [N] of the type of y [T,N]."""
    facts, shape = analysis[y], analysis[y].shape
    if not isinstance(bias, gs.Constant) or shape is None or analysis[bias].dtype != facts.dtype:
        return False
    return list(bias.shape) == [shape[-1].constant()]


def is_of_first_tokens(node: gs.Node) -> bool:
    """Whether a node computes rows [B,...] for a PadfreePool that reads one for each sequence."""
    readers = readers_after(node.outputs, lambda reader, _: not is_padfree(reader, "PadfreePool"))
    return any(is_padfree(reader, "PadfreePool") and reader.attrs["mode"] == "each" for reader, _ in readers)
