# SPDX-License-Identifier: Apache-2.0
"""Products of packed tokens by a weight, with what follows them element by element: bias, activation, residual."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ..analysis.graph import Editor, is_padfree, is_standard, node_name, used_once
from ..analysis.layout import T
from ..analysis.symbolic import Analysis
from .activation import find_activation
from .base import Miss, NoMatch, PassResult

NAME = "linear"
MULTIPLE = 8
"""K and N are multiples of it: rows start at multiples of 16 bytes."""


def linear(graph: gs.Graph, analysis: Analysis, precision: str) -> PassResult:
    """Replaces every product [T,K] x [K,N] with a constant weight by PadfreeLinear.

    `precision` is the type that padfree operators compute in; products that stay float32 in a half precision model,
    because their numbers do not fit, are left to TensorRT.

    The bias of a product comes from an Add behind it, or from the padfree operator that would add it. A residual goes
    to PadfreeLinear only where no PadfreeLayerNorm adds it: the norm reads its input once in any case, so that it adds
    the residual for one read, and has the sum in float32.
    """
    editor = Editor(graph)
    replaced, missed = 0, list[Miss]()
    for node in list(graph.nodes):
        if not _is_candidate(analysis, node):
            continue
        try:
            _check(analysis, node, precision)
        except NoMatch as reason:
            missed.append(Miss(node_name(node), str(reason)))
            continue
        name, left = node_name(node), _replace(editor, analysis, node)
        replaced += 1
        if left is not None:
            missed.append(Miss(name, left))
    return PassResult(NAME, replaced, tuple(missed))


def _is_candidate(analysis: Analysis, node: gs.Node) -> bool:
    if not is_standard(node, "MatMul") or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = analysis[node.inputs[0]].shape
    return shape is not None and len(shape) > 1 and shape[0] == T


def _check(analysis: Analysis, node: gs.Node, precision: str) -> None:
    weight = node.inputs[1]
    if precision != "fp32" and analysis[node.inputs[0]].dtype == "float32":
        raise NoMatch(f"'{node_name(node)}' multiplies numbers that {precision} cannot hold, in float32")
    sizes = [int(size) for size in weight.shape]
    if len(sizes) != 2:
        raise NoMatch(f"'{node_name(node)}' has a weight '{weight.name}' of {len(sizes)} axes instead of 2")
    if any(size % MULTIPLE or not size for size in sizes):
        raise NoMatch(
            f"'{node_name(node)}' multiplies by [{sizes[0]},{sizes[1]}], whose sizes are not multiples of {MULTIPLE}"
        )


@dataclass(frozen=True)
class _Step:
    """A value that a product leads to, what was added for it, and the nodes that are not needed then."""

    output: gs.Tensor
    added: gs.Tensor | None = None
    nodes: tuple[gs.Node, ...] = ()


def _replace(editor: Editor, analysis: Analysis, node: gs.Node) -> str | None:
    """Puts PadfreeLinear in the place of a product and of what follows it; returns why an activation stays outside."""
    graph, name, (x, weight) = editor.graph, node.name, node.inputs
    bias = _bias(graph, analysis, node.outputs[0])
    kind, activated, reason = "none", _Step(bias.output), None
    try:
        found = find_activation(graph, analysis, bias.output)
        if found is not None:
            kind, activated = found.kind, _Step(found.output, nodes=found.nodes)
    except NoMatch as refused:
        reason = str(refused)
    residual = _residual(graph, analysis, activated.output)
    output = editor.take_over(residual.output)
    for gone in (node, *bias.nodes, *activated.nodes, *residual.nodes):
        gone.inputs.clear()
        gone.outputs.clear()
    made = editor.padfree(
        "PadfreeLinear",
        [x, weight, *(step.added for step in (bias, residual) if step.added is not None)],
        [output],
        activation=kind,
        has_bias=int(bias.added is not None),
        has_residual=int(residual.added is not None),
        has_x_moments=0,
        has_residual_moments=0,
        has_moments=0,
        gated=0,
        rms=0,
        rotary_features=0,
        x_epsilon=0.0,
        residual_epsilon=0.0,
    )
    made.name = name or made.name  # the product's: profiles tell layers by it
    if bias.added is not None and not bias.nodes:
        output.name = editor.fresh(f"{output.name}_biased")  # it is no longer what the original has under the old one
    return reason


def _bias(graph: gs.Graph, analysis: Analysis, y: gs.Tensor) -> _Step:
    """The bias [N] that the only reader of a product adds: an Add, or a padfree operator, which then adds none."""
    if not used_once(graph, y):
        return _Step(y)
    reader = y.outputs[0]
    if is_standard(reader, "Add"):
        other = reader.inputs[1] if reader.inputs[0] is y else reader.inputs[0]
        return _Step(reader.outputs[0], other, (reader,)) if _fits(analysis, other, y) else _Step(y)
    flag = {"PadfreeLayerNorm": "has_bias", "PadfreeAttention": "has_qkv_bias"}.get(reader.op)
    if flag is None or not is_padfree(reader, reader.op) or not reader.attrs[flag] or reader.inputs[0] is not y:
        return _Step(y)
    added = reader.inputs[1]  # the bias follows the tensor that it is added to
    if not _fits(analysis, added, y):
        return _Step(y)
    del reader.inputs[1]
    reader.attrs[flag] = 0
    return _Step(y, added)


def _fits(analysis: Analysis, bias: gs.Tensor, y: gs.Tensor) -> bool:
    facts, shape = analysis[y], analysis[y].shape
    if not isinstance(bias, gs.Constant) or shape is None or analysis[bias].dtype != facts.dtype:
        return False
    return list(bias.shape) == [shape[-1].constant()]


def _residual(graph: gs.Graph, analysis: Analysis, y: gs.Tensor) -> _Step:
    """The tensor [T,N] that the only reader of y adds to it."""
    reader = y.outputs[0] if used_once(graph, y) else None
    if reader is None or not is_standard(reader, "Add"):
        return _Step(y)
    other = reader.inputs[1] if reader.inputs[0] is y else reader.inputs[0]
    same = analysis[other].shape == analysis[y].shape and analysis[other].dtype == analysis[y].dtype
    return _Step(reader.outputs[0], other, (reader,)) if same and analysis[y].shape is not None else _Step(y)
