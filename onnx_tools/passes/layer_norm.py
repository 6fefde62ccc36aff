# SPDX-License-Identifier: Apache-2.0
"""Layer norm on packed tokens, with the bias and the residual that are added before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, is_output, made_by, used_once
from ..analysis.symbolic import Analysis, Poly
from ..match import NoMatch
from ..match.chains import norms
from .base import PassResult, replace_each

NAME = "layer norm"


def layer_norm(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Replaces every layer norm of a packed tensor by PadfreeLayerNorm."""
    editor = Editor(graph)

    def replace(node: gs.Node) -> bool:
        norm = norms.match(analysis, node) if norms.is_candidate(node) else None
        if norm is None:
            return False
        _check(analysis, norm)
        _replace(editor, analysis, norm)
        return True

    return replace_each(NAME, graph.nodes, replace)


def _check(analysis: Analysis, norm: norms.LayerNorm) -> None:
    facts = analysis[norm.x]
    if facts.shape is None or not facts.shape or facts.shape[0] != Poly.atom("T"):
        raise NoMatch(f"'{norm.node}' normalises a tensor that is not packed")
    width = facts.shape[-1].constant()
    for constant in (norm.gamma, norm.beta):
        if constant is not None and list(constant.shape) != [width]:
            raise NoMatch(f"'{norm.node}' has a scale or bias of shape {list(constant.shape)} instead of [{width}]")


@dataclass(frozen=True)
class _Sum:
    """x + bias + residual, as far as it is put together by Adds."""

    x: gs.Tensor
    bias: gs.Tensor | None
    residual: gs.Tensor | None


def _replace(editor: Editor, analysis: Analysis, norm: norms.LayerNorm) -> None:
    graph = editor.graph
    parts = _parts(graph, analysis, norm.x)
    readers = {id(node) for node in norm.x.outputs}
    inside = {id(node) for node in _inside(norm)}
    has_sum = parts.x is not norm.x and (is_output(graph, norm.x) or not readers <= inside)
    gamma = norm.gamma
    if gamma is None:
        gamma = editor.constant("ones", np.ones((analysis[norm.x].shape or ())[-1].constant() or 0, np.float32))
    optional = [parts.bias, parts.residual, gamma, norm.beta]
    editor.padfree(
        "PadfreeLayerNorm",
        [parts.x, *(item for item in optional if item is not None)],
        [norm.output, *([norm.x] if has_sum else [])],
        epsilon=norm.epsilon,
        rms=int(norm.rms),
        has_bias=int(parts.bias is not None),
        has_residual=int(parts.residual is not None),
        has_beta=int(norm.beta is not None),
        has_sum=int(has_sum),
        results="act",
        y_scale=1.0,
    )


def _inside(norm: norms.LayerNorm) -> list[gs.Node]:
    """The readers of x that vanish with the norm."""
    if norm.readers:
        return list(norm.readers)
    reads = list(norm.x.outputs)
    if len(reads) == 1:
        return reads
    return [
        node
        for node in reads
        if node.op == "Sub" or (node.op == "ReduceMean" and all(r.op == "Sub" for r in node.outputs[0].outputs))
    ]


def _parts(graph: gs.Graph, analysis: Analysis, x: gs.Tensor) -> _Sum:
    """Takes the Adds before a norm apart: [T,E] + [T,E], and a constant [E] added to one of them."""
    shape = analysis[x].shape
    residual: gs.Tensor | None = None
    add = made_by(x, "Add")
    if add is None or shape is None:
        return _Sum(x, None, None)
    bias = _bias(analysis, x)
    if bias is not None:
        return _Sum(bias[0], bias[1], None)
    if any(analysis[item].shape != shape for item in add.inputs):
        return _Sum(x, None, None)
    first, residual = add.inputs
    for this, other in ((first, residual), (residual, first)):
        bias = _bias(analysis, this) if used_once(graph, this) else None
        if bias is not None:
            return _Sum(bias[0], bias[1], other)
    return _Sum(first, None, residual)


def _bias(analysis: Analysis, tensor: gs.Tensor) -> tuple[gs.Tensor, gs.Constant] | None:
    """(y, b) where the tensor is y + b with a constant b [E] and y of the same shape."""
    add = made_by(tensor, "Add")
    if add is None:
        return None
    shape = analysis[tensor].shape
    for this, other in ((0, 1), (1, 0)):
        constant = add.inputs[other]
        if not isinstance(constant, gs.Constant) or shape is None or analysis[add.inputs[this]].shape != shape:
            continue
        if list(constant.shape) == [shape[-1].constant()]:
            return add.inputs[this], constant
    return None
