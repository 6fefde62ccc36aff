# SPDX-License-Identifier: Apache-2.0
"""Loops and branches that depend on the inputs: those that no output needs are left out, others refused with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto

from ..analysis import node_name, tensors_before
from ..analysis.symbolic import Facts
from ..errors import RewriteError
from ..files import names_read, replace_items

Lookup = Callable[[gs.Tensor], Facts]


def keep_needed(model: ModelProto) -> ModelProto:
    """Takes nodes that lead to no output out of a model, in place, as their subgraphs might be refused."""
    nodes = list(model.graph.node)
    makers = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    waiting, needed_names = [value.name for value in model.graph.output], set[int]()
    while waiting:
        at = makers.get(waiting.pop())
        if at is None or at in needed_names:
            continue
        needed_names.add(at)
        waiting += names_read(nodes[at])
    if len(needed_names) < len(nodes):
        replace_items(model.graph.node, [nodes[at] for at in sorted(needed_names)])
    return model


def refusal(node: gs.Node, graph: gs.Graph, lookup: Lookup) -> RewriteError:
    """The error for a node whose subgraph cannot be taken, in a graph of the nodes before it."""
    name = f"node '{node_name(node)}' ({node.op})"
    squeezed = _squeezed_axis(node)
    if squeezed is not None:
        axis = "" if squeezed < 0 else str(squeezed)
        axis_text = f" along axis {squeezed}" if squeezed >= 0 else ""
        return RewriteError(
            f"{name} chooses between a Squeeze{axis_text} and nothing, as torch.onnx.export writes x.squeeze({axis}) "
            "where "
            "it does not know whether there is one element; in the model take that axis by its index (x.select(axis, "
            "0) or x[:, 0]), or leave it, and export it again"
        )
    outputs = [tensor.name for tensor in graph.outputs if not _depends(tensor, node)]
    cut = outputs or [tensor.name for tensor in [_before(node, graph, lookup)] if tensor is not None]
    advice = (
        f"keep what comes before it, and do the rest outside: --outputs {','.join(cut)}"
        if cut
        else "export the model up to the tensors that it reads, and do the rest outside"
    )
    if node.op == "If":
        return RewriteError(
            f"{name} chooses between subgraphs by '{node.inputs[0].name}', which depends on the inputs; that cannot be "
            f"packed; {advice}; or export the model with fixed choices"
        )
    return RewriteError(
        f"{name} runs a subgraph again and again, as decoders run over tokens; loops cannot be packed, and one "
        f"that tracing unrolls is right for one length only; {advice}"
    )


def _squeezed_axis(node: gs.Node) -> int | None:
    """The axis that an If removes in one branch, -1 where it names none; None for any other node."""
    branches = graphs_in(node)
    operators = sorted([inner.op for inner in branch.nodes if inner.op != "Constant"] for branch in branches)
    if node.op != "If" or operators not in ([["Identity"], ["Squeeze"]], [[], ["Squeeze"]]):
        return None
    squeeze = next(inner for branch in branches for inner in branch.nodes if inner.op == "Squeeze")
    axes = squeeze.inputs[1] if len(squeeze.inputs) > 1 else None
    values = squeeze.attrs.get("axes") if axes is None else _values(axes)
    return -1 if values is None or len(values) != 1 else int(values[0])


def _values(tensor: gs.Tensor) -> Sequence[int] | None:
    if isinstance(tensor, gs.Constant):
        return [int(value) for value in np.ravel(tensor.values)]
    maker = tensor.inputs[0] if tensor.inputs else None
    value = maker.attrs.get("value") if maker is not None and maker.op == "Constant" else None
    return None if value is None else [int(item) for item in np.ravel(value.values)]


def graphs_in(node: gs.Node) -> list[gs.Graph]:
    """The graphs that a node holds."""
    values = (value if isinstance(value, list) else [value] for value in node.attrs.values())
    return [item for items in values for item in items if isinstance(item, gs.Graph)]


def _reads(node: gs.Node) -> Iterator[gs.Tensor]:
    """The tensors that a node reads, also in its subgraphs."""
    yield from node.inputs
    for inner in graphs_in(node):
        yield from inner.outputs
        for each in inner.nodes:
            yield from _reads(each)


def _depends(tensor: gs.Tensor, node: gs.Node) -> bool:
    """Whether a tensor depends on a node."""
    return any(maker is node for item in tensors_before([tensor], _reads) for maker in item.inputs)


def _before(node: gs.Node, graph: gs.Graph, lookup: Lookup) -> gs.Tensor | None:
    """The nearest float tensor of three axes, as [B,S,E], that a node depends on."""
    inside = {id(item) for item in graph.nodes}
    for tensor in tensors_before(_reads(node), _reads):
        facts = lookup(tensor)
        outside = any(id(maker) in inside for maker in tensor.inputs)
        if outside and facts.rank == 3 and (facts.dtype or "").startswith("float"):
            return tensor
    return None
