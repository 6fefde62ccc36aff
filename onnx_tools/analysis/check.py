# SPDX-License-Identifier: Apache-2.0
"""What must hold of a graph after every pass."""

from __future__ import annotations

import itertools

import onnx_graphsurgeon as gs

from ..errors import RewriteError
from ..operators import DOMAIN, OPERATORS
from .graph import is_padfree, node_name, present
from .layout import B, Layout, S, T, layout_of
from .symbolic import Analysis, analyse
from .symbolic.facts import Shape

_LEADING = {"B": B, "S": S, "T": T}
"""The axes that a first input may begin with; the description of a norm does not name them, and means tokens."""


def check_graph(graph: gs.Graph, after: str, before: Analysis | None = None) -> Analysis:
    """Checks that every tensor is made once, before it is read, under a name of its own, and in a fitting layout.

    Returns what is known of its tensors; `before` is what was known before that pass. Raises RewriteError naming the
    pass `after` which the graph is wrong.
    """
    tensors: dict[str, gs.Tensor] = {}
    names: set[str] = set()
    for tensor in graph.inputs:
        _add(tensors, tensor, after)
    for node in graph.nodes:
        if node.name and node.name in names and not node.name.startswith("/"):
            raise _error(after, f"two nodes are called '{node.name}'")
        names.add(node.name)
        for tensor in present(node.inputs):
            if isinstance(tensor, gs.Constant):
                if tensors.setdefault(tensor.name, tensor) is not tensor:
                    raise _error(after, f"two tensors are called '{tensor.name}'")
            elif tensors.get(tensor.name) is not tensor:
                reader = f"'{node_name(node)}' ({node.op})"
                raise _error(after, f"{reader} reads '{tensor.name}' before anything makes it")
        for tensor in present(node.outputs):
            _add(tensors, tensor, after)
    for tensor in graph.outputs:
        if tensors.get(tensor.name) is not tensor:
            raise _error(after, f"nothing makes the output '{tensor.name}'")
    analysis = analyse(graph, before)
    for node in graph.nodes:
        if node.domain == DOMAIN:
            _check_layout(analysis, node, after)
    return analysis


def _add(tensors: dict[str, gs.Tensor], tensor: gs.Tensor, after: str) -> None:
    if tensor.name in tensors:
        raise _error(after, f"'{tensor.name}' is made twice")
    tensors[tensor.name] = tensor


def _check_layout(analysis: Analysis, node: gs.Node, after: str) -> None:
    """Checks that the first input of a padfree node starts with the axes that the operator works on."""
    axes = OPERATORS[node.op].inputs_for(node.attrs)[0].axes
    expected: Shape = tuple(_LEADING[axis] for axis in itertools.takewhile(_LEADING.__contains__, axes)) or (T,)
    shape = analysis[node.inputs[0]].shape
    per_sequence = layout_of(analysis[node.inputs[0]]) is Layout.PER_SEQUENCE
    if is_padfree(node, "PadfreeLayerNorm", "PadfreePostNorm", "PadfreeLinear") and per_sequence:
        return  # rows of first tokens are normed and multiplied like those of all tokens
    if shape is None or shape[: len(expected)] != expected:
        text = "unknown" if shape is None else f"[{', '.join(str(size) for size in shape)}]"
        raise _error(after, f"'{node_name(node)}' ({node.op}) reads '{node.inputs[0].name}' of shape {text}")


def _error(after: str, what: str) -> RewriteError:
    return RewriteError(
        f"the graph is wrong after the pass '{after}': {what}; this is a defect of padfree: please report it with the "
        "model"
    )
