# SPDX-License-Identifier: Apache-2.0
"""Products of tokens by a weight, with what follows them element by element: bias, activation, residual."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import Editor, disconnect, is_padfree, node_name, used_once
from ...analysis.symbolic import Analysis
from ...match import Miss, NoMatch
from ...match.chains import find_activation
from ...match.chains.gemms import GemmStep, added_bias, addition, check, is_bias, is_candidate
from ..base import PassResult
from .linear_node import padfree_linear

NAME = "linear"


def linear(graph: gs.Graph, analysis: Analysis, precision: str) -> PassResult:
    """Replaces every GEMM [T,K] x [K,N], or [B,K] x [K,N] of first tokens, with a constant weight by PadfreeLinear.

    `precision` is the type that padfree operators compute in; GEMMs that stay float32 in a half precision model,
    because their numbers do not fit, are left to TensorRT.

    The bias of a GEMM comes from an Add after it, or from the padfree operator that would add it. A residual goes
    to PadfreeLinear only where no PadfreeLayerNorm adds it: the norm reads its input once in any case, so that adding
    the residual costs it one more read, and it has the sum in float32.
    """
    editor = Editor(graph)
    replaced_count, misses = 0, list[Miss]()
    for node in list(graph.nodes):
        if not is_candidate(analysis, node):
            continue
        try:
            check(analysis, node, precision)
        except NoMatch as reason:
            misses.append(Miss(node_name(node), str(reason)))
            continue
        name, replacement = node_name(node), _replace(editor, analysis, node)
        replaced_count += 1
        if replacement is not None:
            misses.append(Miss(name, replacement))
    return PassResult(NAME, replaced_count, tuple(misses))


def _replace(editor: Editor, analysis: Analysis, node: gs.Node) -> str | None:
    """Replaces a GEMM and what follows it by PadfreeLinear; returns why an activation stays outside."""
    graph, name, (x, weight) = editor.graph, node.name, node.inputs
    bias = _bias(graph, analysis, node.outputs[0])
    kind, activated, reason = "none", GemmStep(bias.output), None
    try:
        activation = find_activation(graph, analysis, bias.output)
        if activation is not None:
            kind, activated = activation.kind, GemmStep(activation.output, nodes=activation.nodes)
    except NoMatch as refused:
        reason = str(refused)
    residual = _residual(graph, analysis, activated.output)
    output = residual.output
    disconnect(node, *bias.nodes, *activated.nodes, *residual.nodes)
    padfree_linear(editor, name, [x, weight, bias.addend, residual.addend], output, activation=kind)
    if bias.addend is not None and not bias.nodes:
        output.name = editor.fresh(f"{output.name}_biased")  # the old name is another value's in the original
    return reason


def _bias(graph: gs.Graph, analysis: Analysis, y: gs.Tensor) -> GemmStep:
    """The bias [N] that the only reader of a GEMM adds: an Add, or a padfree operator, which then adds none."""
    if not used_once(graph, y):
        return GemmStep(y)
    reader = y.outputs[0]
    flag = {"PadfreeLayerNorm": "has_bias", "PadfreeAttention": "has_qkv_bias"}.get(reader.op)
    if flag is None or not is_padfree(reader, reader.op):
        return added_bias(graph, analysis, y)
    if not reader.attrs[flag] or reader.inputs[0] is not y:
        return GemmStep(y)
    bias = reader.inputs[1]  # the bias follows the tensor that it is added to
    if not is_bias(analysis, bias, y):
        return GemmStep(y)
    del reader.inputs[1]
    reader.attrs[flag] = 0
    return GemmStep(y, bias)


def _residual(graph: gs.Graph, analysis: Analysis, y: gs.Tensor) -> GemmStep:
    """The tensor [T,N] that the only reader of y adds to it."""
    shape, dtype = analysis[y].shape, analysis[y].dtype
    return addition(
        graph, y, lambda other: shape is not None and (analysis[other].shape, analysis[other].dtype) == (shape, dtype)
    )
