# SPDX-License-Identifier: Apache-2.0
"""Lists of what attention's thread blocks do: made once, read by all layers with the same number of heads."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, find_padfree, padfree_inputs, padfree_outputs, set_padfree_inputs
from ..analysis.symbolic import Analysis
from .base import PassResult

NAME = "tasks"


def attention_tasks(graph: gs.Graph, _: Analysis) -> PassResult:
    """Gives every PadfreeAttention the list that its PadfreeSchedule makes for its number of heads."""
    editor = Editor(graph)
    lists: dict[tuple[str, int], gs.Tensor] = {}
    attentions = find_padfree(graph, "PadfreeAttention")
    for node in attentions:
        inputs, heads = padfree_inputs(node), int(node.attrs["num_heads"])
        cu_seqlens = inputs["cu_seqlens"]
        key = (cu_seqlens.name, heads)
        if key not in lists:
            lists[key] = _add_list(editor, cu_seqlens.inputs[0], heads)
        set_padfree_inputs(node, {**inputs, "tasks": lists[key]}, has_tasks=1)
    return PassResult(NAME, len(attentions))


def _add_list(editor: Editor, schedule: gs.Node, heads: int) -> gs.Tensor:
    """The list of the schedule, or of a new schedule like it where that has a list for another number of heads."""
    tasks = editor.variable("padfree_tasks", np.dtype(np.int32))
    if "tasks" not in padfree_outputs(schedule):
        schedule.outputs.append(tasks)
        schedule.attrs.update(has_tasks=1, num_heads=heads)
        return tasks
    sums = editor.variable("padfree_cu_seqlens", np.dtype(np.int32))
    editor.padfree("PadfreeSchedule", schedule.inputs[:2], [sums, tasks], has_tasks=1, num_heads=heads)
    return tasks
