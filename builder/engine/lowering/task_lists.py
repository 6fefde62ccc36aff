# SPDX-License-Identifier: Apache-2.0
"""Task lists that no kernel of the engine would read."""

from __future__ import annotations

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import find_padfree, is_padfree, padfree_attributes, padfree_inputs, padfree_outputs
from padfree.onnx_tools.operators import DOMAIN

SHORT_LENGTH = 128
"""Up to this max_seq_len PadfreeAttention takes a kernel that reads no list (kShortLength of attention/kernels.h)."""
NARROW_HEADS = 128
"""Above this head size no kernel reads a list (kMaxHopperHeadSize of attention/kernels.h)."""


def drop_unread_task_lists(graph: gs.Graph, max_seq_len: int) -> None:
    """Removes task lists where sequences are short or heads wide, from schedules and attention nodes, in place.

    A schedule that made only the list then feeds nothing, and TensorRT drops it.

    Args:
        graph: of a rewritten model.
        max_seq_len: the build's longest sequence, short up to SHORT_LENGTH.
    """
    read = set() if max_seq_len <= SHORT_LENGTH else {id(tensor) for tensor, _ in _readers(graph)}
    for node in graph.nodes:
        if node.domain != DOMAIN:
            continue
        inputs, outputs = padfree_inputs(node), padfree_outputs(node)
        tasks = inputs.pop("tasks", None) or outputs.pop("tasks", None)
        if tasks is not None and id(tasks) not in read:
            node.inputs, node.outputs = list(inputs.values()), list(outputs.values())
            node.attrs["has_tasks"] = 0


def mark_causal_task_lists(graph: gs.Graph) -> None:
    """Tells schedules that all queries which read their list see no keys after their own, in place."""
    right_sides: dict[int, list[int]] = {}
    for tensor, attention in _readers(graph):
        right_sides.setdefault(id(tensor), []).append(int(padfree_attributes(attention)["window_right"]))
    for node in graph.nodes:
        tasks = padfree_outputs(node).get("tasks") if is_padfree(node, "PadfreeSchedule") else None
        own = right_sides.get(id(tasks), [])
        if own and not any(own):
            node.attrs["causal_tasks"] = 1


def _readers(graph: gs.Graph) -> list[tuple[gs.Tensor, gs.Node]]:
    """The lists that attention nodes read, with these nodes: kernels for wide heads read none."""
    nodes = find_padfree(graph, "PadfreeAttention")
    narrow = [node for node in nodes if int(padfree_attributes(node)["head_size"]) <= NARROW_HEADS]
    return [(inputs["tasks"], node) for node in narrow if "tasks" in (inputs := padfree_inputs(node))]
