# SPDX-License-Identifier: Apache-2.0
"""Schedules that an embedding, or a kernel that takes rows of a table, makes beside its rows.

A kernel that is launched after another begins some 3 us later, whatever it waits for. An embedding needs only the
offsets of its schedule, which it can compute from the lengths, and rows of a table need nothing of it: one launch makes
both.
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
        schedule = producer(padfree_inputs(embedding)["cu_seqlens"])
        if schedule is not None and is_padfree(schedule, "PadfreeSchedule"):
            attributes = padfree_attributes(schedule)
            if not (attributes["has_positions"] or padfree_attributes(embedding)["has_positions"]):
                _merge_where_possible(graph, schedule, embedding)
    for rows in find_padfree(graph, "PadfreeTokenRows"):
        for schedule in find_padfree(graph, "PadfreeSchedule")[:1]:
            _merge_where_possible(graph, schedule, rows)


def _merge_where_possible(graph: gs.Graph, schedule: gs.Node, rows: gs.Node) -> None:
    """Lets the node that makes rows make the schedule, in the place of the first of both, if nothing forbids it.

    The schedule may not make more than tasks and positions, and the inputs of both must be made before.
    """
    attributes, offsets = padfree_attributes(schedule), schedule.outputs[0]
    first = next(node for node in graph.nodes if node is schedule or node is rows)
    remaining = itertools.dropwhile(lambda node: node is not first, graph.nodes)
    late = {id(tensor) for node in remaining for tensor in node.outputs} - {id(offsets)}
    inputs = map(id, [*rows.inputs, *schedule.inputs])
    if attributes["has_extent"] or attributes["has_prefix"] or not late.isdisjoint(inputs):
        return
    lengths, results = schedule.inputs[0], list(schedule.outputs)
    other = rows if first is schedule else schedule
    graph.nodes = [rows if node is first else node for node in graph.nodes if node is not other]
    remove_nodes(graph, [schedule])
    rows.inputs = [*(tensor for tensor in rows.inputs if tensor is not offsets), lengths]
    rows.outputs = [*rows.outputs, *results]
    names = ("has_positions", "has_tasks", "num_heads", "causal_tasks")
    values = {name: schedule.attrs[name] for name in names if name in schedule.attrs}
    if rows.op == "PadfreeEmbedding":
        del values["has_positions"]
    rows.attrs.update(schedules=1, **values)
