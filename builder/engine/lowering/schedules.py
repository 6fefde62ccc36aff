# SPDX-License-Identifier: Apache-2.0
"""Schedules that an embedding makes beside its rows.

A kernel that is launched after another begins some 3 us later, whatever it waits for. An embedding needs only the
offsets of its schedule, which it can compute from the lengths: one launch makes both.
"""

from __future__ import annotations

import itertools

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import (
    find_padfree,
    is_padfree,
    padfree_attributes,
    padfree_inputs,
    producer,
    remove_nodes,
)


def merge_schedules(graph: gs.Graph) -> None:
    """Lets an embedding that reads the offsets of a PadfreeSchedule make them, and the task list, itself, in place.

    A schedule stays if it makes more, or if inputs of the embedding are made after it.
    """
    for embedding in find_padfree(graph, "PadfreeEmbedding"):
        offsets = padfree_inputs(embedding)["cu_seqlens"]
        schedule = producer(offsets)
        if schedule is not None and _can_merge(graph, schedule, embedding, offsets):
            _merge(graph, schedule, embedding, offsets)


def _can_merge(graph: gs.Graph, schedule: gs.Node, embedding: gs.Node, offsets: gs.Tensor) -> bool:
    """Whether an embedding can make all that the schedule makes, and has its inputs before the schedule."""
    if not is_padfree(schedule, "PadfreeSchedule"):
        return False
    attributes = padfree_attributes(schedule)
    if attributes["has_extent"] or attributes["has_positions"] or padfree_attributes(embedding)["has_positions"]:
        return False
    remaining = itertools.dropwhile(lambda node: node is not schedule, graph.nodes)
    late = {id(tensor) for node in remaining for tensor in node.outputs} - {id(offsets)}
    return late.isdisjoint(map(id, embedding.inputs))


def _merge(graph: gs.Graph, schedule: gs.Node, embedding: gs.Node, offsets: gs.Tensor) -> None:
    """Puts the embedding in the schedule's place."""
    lengths, results = schedule.inputs[0], list(schedule.outputs)
    graph.nodes = [embedding if node is schedule else node for node in graph.nodes if node is not embedding]
    remove_nodes(graph, [schedule])
    embedding.inputs = [*(tensor for tensor in embedding.inputs if tensor is not offsets), lengths]
    embedding.outputs = [*embedding.outputs, *results]
    names = ("has_tasks", "num_heads", "causal_tasks")
    embedding.attrs.update(schedules=1, **{name: schedule.attrs[name] for name in names if name in schedule.attrs})
