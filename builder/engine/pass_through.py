# SPDX-License-Identifier: Apache-2.0
"""Outputs that are an input as it came (ids of rows that go through a model): written by a kernel.

TensorRT 10.6 moves such values by a copy of its own, which the stream of the run does not wait for: on an H200, of 40
batches up to 40 had values of the batch before, and none after the device was synchronised. A comparison that never
changes a value keeps the copy from being one.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, NodeProto, TensorProto, helper

SAME_VALUES = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_WIDE_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def compute_passed_through(model: ModelProto) -> None:
    """Gives every output that is an input in another form a step that computes, in place; values stay to the bit."""
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    first_nodes = {id(node): node for node in _first_nodes(model, set(inputs))}
    for number, node in enumerate(first_nodes.values()):
        name = node.input[0]
        prefix = f"{name}_passed_through_{number}"
        value = -(2**31) if inputs[name] in _WIDE_INTEGERS else 1  # any number that has one form in its type
        model.graph.initializer.append(helper.make_tensor(f"{prefix}_value", inputs[name], [], [value]))
        steps = [
            helper.make_node("Equal", [name, f"{prefix}_value"], [f"{prefix}_equal"], name=f"{prefix}_equal"),
            helper.make_node("Where", [f"{prefix}_equal", f"{prefix}_value", name], [prefix], name=prefix),
        ]
        node.input[0] = prefix
        for step in reversed(steps):
            model.graph.node.insert(0, step)


def _first_nodes(model: ModelProto, inputs: set[str]) -> Iterator[NodeProto]:
    """Of each output that is an input in another form the node that reads the input."""
    producers = {output: node for node in model.graph.node for output in node.output}
    for value in model.graph.output:
        node = producers.get(value.name)
        while node is not None and node.op_type in SAME_VALUES and not node.domain:
            if node.input[0] in inputs:
                yield node
                break
            node = producers.get(node.input[0])
