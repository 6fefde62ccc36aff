# SPDX-License-Identifier: Apache-2.0
"""Schedules that an embedding makes beside its rows.

A kernel that is launched after another begins some 3 us later, whatever it waits for. An embedding needs only the
offsets of its schedule, which it can compute from the lengths: one launch makes both.
"""

from __future__ import annotations

import onnx
from padfree.onnx_tools.operators import named_inputs, node_attributes, padfree_nodes, set_attribute


def merge_schedules(model: onnx.ModelProto) -> None:
    """Lets an embedding that reads the offsets of a PadfreeSchedule make them, and the task list, itself, in place.

    A schedule stays if it makes more, or if inputs of the embedding are made after it.
    """
    for embedding in [node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeEmbedding"]:
        offsets = named_inputs(embedding)["cu_seqlens"]
        schedule = next((node for node in padfree_nodes(model.graph) if offsets in node.output), None)
        if schedule is not None and _can_merge(model.graph, schedule, embedding, offsets):
            _merge(model.graph, schedule, embedding, offsets)


def _can_merge(graph: onnx.GraphProto, schedule: onnx.NodeProto, embedding: onnx.NodeProto, offsets: str) -> bool:
    """Whether an embedding can make all that the schedule makes, and has its inputs before the schedule."""
    if schedule.op_type != "PadfreeSchedule":
        return False
    schedule_attributes, embedding_attributes = node_attributes(schedule), node_attributes(embedding)
    if (
        schedule_attributes["has_extent"]
        or schedule_attributes["has_positions"]
        or embedding_attributes["has_positions"]
    ):
        return False
    nodes = list(graph.node)
    late = {name for node in nodes[nodes.index(schedule) :] for name in node.output} - {offsets}
    return not late.intersection(embedding.input)


def _merge(graph: onnx.GraphProto, schedule: onnx.NodeProto, embedding: onnx.NodeProto, offsets: str) -> None:
    """Puts the embedding in the schedule's place."""
    attributes = node_attributes(schedule)
    embedding.input.remove(offsets)
    embedding.input.append(schedule.input[0])
    embedding.output.extend(schedule.output)
    set_attribute(embedding, "schedules", 1)
    for name in ("has_tasks", "num_heads"):
        set_attribute(embedding, name, attributes[name])
    merged = onnx.NodeProto()
    merged.CopyFrom(embedding)
    graph.node.remove(embedding)
    graph.node.insert(list(graph.node).index(schedule), merged)
    graph.node.remove(schedule)
