# SPDX-License-Identifier: Apache-2.0
"""Digests of rewritten graphs: `python -m tests.frozen.graph_digests` before and after a change that must keep them.

Names of tensors and nodes are left out, so that a pass may call them anew; operators, attributes, weights and edges
count.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from onnx import GraphProto
from padfree.onnx_tools import load_model, rewrite

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MODELS = ("bert_dynamo", "bert_eager_torchscript", "classifier_dynamo", "classifier_torchscript", "embedder_dynamo")
INTERFACES = ("packed", "padded")


def digest(graph: GraphProto) -> str:
    """SHA-256 of a graph whose nodes are sorted, without names of its own."""
    known = {value.name: f"input {value.name}" for value in graph.input}
    known |= {
        item.name: hashlib.sha256(item.raw_data + repr(list(item.dims)).encode()).hexdigest()
        for item in graph.initializer
    }
    for node in graph.node:
        content = [node.op_type, node.domain, *(known.get(name, "") for name in node.input)]
        content += sorted(str(attribute) for attribute in node.attribute)
        made_of = hashlib.sha256("\n".join(content).encode()).hexdigest()
        known |= {name: f"{made_of} {at}" for at, name in enumerate(node.output)}
    outputs = "\n".join(f"{value.name} {known.get(value.name, '')}" for value in graph.output)
    return hashlib.sha256(outputs.encode()).hexdigest()


def main() -> None:
    """Prints a line for every model and interface."""
    for name in MODELS:
        for interface in INTERFACES:
            result = rewrite(load_model(FIXTURES / f"{name}.onnx"), interface=interface, precision="fp32", verify=False)
            sys.stdout.write(f"{name} {interface} {digest(result.model.graph)}\n")


if __name__ == "__main__":
    main()
