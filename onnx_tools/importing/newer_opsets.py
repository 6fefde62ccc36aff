# SPDX-License-Identifier: Apache-2.0
"""Raises the opset of a rewritten model whose graph needs types that its own opset does not have (e4m3: 19)."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, defs, helper

from ..errors import RewriteError
from ..files.message_builder import MessageBuilder
from ..operators import opset_of
from .opsets import take_attribute
from .skeleton import Names

_STANDARD = ("", "ai.onnx")
_CHANGED = ("RoiAlign", "Resize", "Upsample")
"""Operators that mean something else in newer opsets where an attribute is left out."""


def raise_opset(model: ModelProto, target: int) -> None:
    """Makes standard operators those of opset `target`, in place; models of that opset or a newer one stay as they are.

    Raises RewriteError naming a node that has no equal there.
    """
    version = opset_of(model)
    if version >= target:
        return
    names, nodes = Names(model.graph), list[NodeProto]()
    for node in model.graph.node:
        if node.domain in _STANDARD and _schema(node, version) != _schema(node, target):
            nodes.extend(_raise_version(node, version, target, names))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for entry in model.opset_import:
        if entry.domain in _STANDARD:
            entry.version = target


def _schema(node: NodeProto, version: int) -> tuple[int, bool]:
    """The opset since which an operator is what it is in `version`, and whether `version` has it."""
    there = defs.has(node.op_type, version)
    return (defs.get_schema(node.op_type, version).since_version if there else 0, there)


def _raise_version(node: NodeProto, version: int, target: int, names: Names) -> list[NodeProto]:
    """The nodes that do in opset `target` what the node does in `version`."""
    if node.op_type in _CHANGED or not defs.has(node.op_type, target):
        raise _refusal(node, version, target, "it means something else there")
    before = MessageBuilder()
    attributes = defs.get_schema(node.op_type, target).attributes
    if node.op_type.startswith("Reduce") and "axes" not in attributes:
        attribute = take_attribute(node, "axes")
        if attribute is not None:
            axes = names.fresh(f"{node.output[0]}_axes")
            node.input.append(before.op("Constant", output=axes, value_ints=list(attribute.ints)))
    if node.op_type == "Split" and len(node.input) < 2 and "num_outputs" in attributes:
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    unknown = [item.name for item in node.attribute if item.name not in attributes]
    if unknown:
        raise _refusal(node, version, target, f"its attribute '{unknown[0]}' is gone")
    return [*before.graph.node, node]


def _refusal(node: NodeProto, version: int, target: int, why: str) -> RewriteError:
    return RewriteError(
        f"node '{node.name or ' '.join(node.output)}' ({node.op_type}) of opset {version} has no equal in opset "
        f"{target}, which e4m3 needs: {why}; export the model with opset {target}, or choose precision fp16"
    )
