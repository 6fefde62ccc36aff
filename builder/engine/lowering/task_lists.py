# SPDX-License-Identifier: Apache-2.0
"""Task lists that no kernel of the engine would read."""

from __future__ import annotations

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import padfree_attributes
from padfree.onnx_tools.operators import DOMAIN, OPERATORS

SHORT_LENGTH = 128
"""Up to this max_seq_len PadfreeAttention takes a kernel that reads no list (kShortLength of attention/kernels.h)."""


def drop_unread_task_lists(graph: gs.Graph, max_seq_len: int) -> None:
    """Where sequences are short, removes the task lists from schedules and attention nodes, in place.

    A schedule that made only the list then feeds nothing, and TensorRT drops it.

    Args:
        graph: of a rewritten model.
        max_seq_len: the build's longest sequence; above SHORT_LENGTH nothing changes.
    """
    if max_seq_len > SHORT_LENGTH:
        return
    for node in graph.nodes:
        if node.domain != DOMAIN or not padfree_attributes(node).get("has_tasks"):
            continue
        spec = OPERATORS[node.op]
        inputs, outputs = spec.inputs_for(node.attrs), spec.outputs_for(node.attrs)
        node.inputs = [tensor for tensor, item in zip(node.inputs, inputs, strict=True) if item.name != "tasks"]
        node.outputs = [tensor for tensor, item in zip(node.outputs, outputs, strict=True) if item.name != "tasks"]
        node.attrs["has_tasks"] = 0
