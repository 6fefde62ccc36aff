# SPDX-License-Identifier: Apache-2.0
"""Raises the opset of a rewritten model whose graph needs types that its own opset does not have (e4m3: 19)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, defs, helper

from ..analysis import STANDARD_DOMAINS, Editor, node_name
from ..analysis.graph import opset as opset_of_graph
from ..errors import RewriteError
from ..files import MessageBuilder, replace_items
from ..operators import opset_of
from .opsets import take_attribute
from .skeleton import Names

_CHANGED = ("RoiAlign", "Resize", "Upsample")
"""Operators that mean something else in newer opsets where an attribute is left out."""


def raise_opset(model: ModelProto, target: int) -> None:
    """Makes standard operators those of opset `target`, in place; models of that opset or a newer one stay as they are.

    Raises RewriteError naming a node that has no equal there.
    """
    step = _Raise(opset_of(model), target)
    if step.version >= target:
        return
    names, nodes = Names(model.graph), list[NodeProto]()
    for node in model.graph.node:
        if node.domain in STANDARD_DOMAINS:
            attributes = [item.name for item in node.attribute]
            change = step.change(node.op_type, node.name or " ".join(node.output), attributes, len(node.input))
            nodes.extend(_change(node, change, names))
        else:
            nodes.append(node)
    replace_items(model.graph.node, nodes)
    for entry in model.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = target


def raise_opset_of_graph(graph: gs.Graph, target: int) -> None:
    """Does the same to the graph of a rewritten model. Raises RewriteError as raise_opset does."""
    step = _Raise(opset_of_graph(graph), target)
    if step.version >= target:
        return
    editor = Editor(graph)
    for node in graph.nodes:
        if node.domain in STANDARD_DOMAINS:
            change = step.change(node.op, node_name(node), node.attrs, len(node.inputs))
            if change.axes_are_inputs:
                axes = np.asarray(node.attrs.pop("axes"), np.int64)
                node.inputs.append(editor.constant(f"{node.outputs[0].name}_axes", axes))
            if change.counts_outputs:
                node.attrs["num_outputs"] = len(node.outputs)
    graph.opset = target
    for entry in graph.import_domains or ():
        if entry.domain in STANDARD_DOMAINS:
            entry.version = target


@dataclass(frozen=True)
class _Change:
    """What becomes of a node: its axes may go from an attribute to an input, and an attribute may count its outputs."""

    axes_are_inputs: bool = False
    counts_outputs: bool = False


@dataclass(frozen=True)
class _Raise:
    """From one opset to a newer one."""

    version: int
    target: int

    def change(self, op: str, name: str, attributes: Collection[str], inputs: int) -> _Change:
        """What makes the node do in the newer opset what it does in the older."""
        if _schema(op, self.version) == _schema(op, self.target):
            return _Change()
        if op in _CHANGED or not defs.has(op, self.target):
            raise self._refusal(op, name, "it means something else there")
        new_attributes = defs.get_schema(op, self.target).attributes
        axes_are_inputs = op.startswith("Reduce") and "axes" in attributes and "axes" not in new_attributes
        unknown = [
            item for item in attributes if item not in new_attributes and not (item == "axes" and axes_are_inputs)
        ]
        if unknown:
            raise self._refusal(op, name, f"its attribute '{unknown[0]}' is gone")
        return _Change(axes_are_inputs, counts_outputs=op == "Split" and inputs < 2 and "num_outputs" in new_attributes)

    def _refusal(self, op: str, name: str, why: str) -> RewriteError:
        return RewriteError(
            f"node '{name}' ({op}) of opset {self.version} has no equal in opset {self.target}, which e4m3 needs: "
            f"{why}; export the model with opset {self.target}, or choose precision fp16"
        )


def _schema(op: str, version: int) -> tuple[int, bool]:
    """The opset since which an operator is what it is in `version`, and whether `version` has it."""
    there = defs.has(op, version)
    return (defs.get_schema(op, version).since_version if there else 0, there)


def _change(node: NodeProto, change: _Change, names: Names) -> list[NodeProto]:
    """The changed node of a message, after a Constant where it needs one."""
    before = MessageBuilder()
    if change.axes_are_inputs:
        attribute = take_attribute(node, "axes")
        axes = names.fresh(f"{node.output[0]}_axes")
        values = [] if attribute is None else list(attribute.ints)
        node.input.append(before.op("Constant", output=axes, value_ints=values))
    if change.counts_outputs:
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    return [*before.graph.node, node]
