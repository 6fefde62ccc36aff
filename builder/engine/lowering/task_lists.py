# SPDX-License-Identifier: Apache-2.0
"""Task lists that no kernel of the engine would read."""

from __future__ import annotations

import onnx
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes, set_attribute

SHORT_LENGTH = 128
"""Up to this max_seq_len PadfreeAttention takes a kernel that reads no list (kShortLength of attention/kernels.h)."""


def drop_unread_task_lists(model: onnx.ModelProto, max_seq_len: int) -> None:
    """Where sequences are short, removes the task lists from schedules and attention nodes, in place.

    A schedule that made only the list then feeds nothing, and TensorRT drops it.

    Args:
        model: a rewritten model.
        max_seq_len: the build's longest sequence; above SHORT_LENGTH nothing changes.
    """
    if max_seq_len > SHORT_LENGTH:
        return
    for node in padfree_nodes(model.graph):
        spec, attributes = OPERATORS[node.op_type], node_attributes(node)
        if not attributes.get("has_tasks"):
            continue
        for names, tensors in ((node.input, spec.inputs_for(attributes)), (node.output, spec.outputs_for(attributes))):
            for at in [at for at, tensor in enumerate(tensors) if tensor.name == "tasks"]:
                del names[at]
        set_attribute(node, "has_tasks", 0)
