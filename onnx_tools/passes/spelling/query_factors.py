# SPDX-License-Identifier: Apache-2.0
"""Factors of scores that are the same for all keys: as factors of the queries, which attention takes in any form.

Swin v2 writes the temperature of each head in this way, others log(tokens) of each sequence.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import Editor, is_output, is_standard, producer
from ...analysis.symbolic import Analysis, Poly, broadcast_shape
from ...match.chains import is_square


def move_query_factors(graph: gs.Graph, analysis: Analysis) -> bool:
    """Multiplies queries instead of the scores [...,S,S]; returns whether there was any such factor."""
    editor, changed = Editor(graph), False
    for node in list(graph.nodes):
        index = _score_index(analysis, node)
        matmul = None if index is None else _matmul(graph, analysis, node.inputs[index])
        if index is None or matmul is None:
            continue
        factor, queries = node.inputs[1 - index], matmul.inputs[0]
        shape = analysis[queries].shape
        if shape is None or broadcast_shape([shape, analysis[factor].shape]) != shape:
            continue
        matmul.inputs[0] = editor.op(node.op, queries, factor, stem=f"{queries.name}_times")
        editor.redirect(node.outputs[0], node.inputs[index])
        changed = True
    return changed


def _score_index(analysis: Analysis, node: gs.Node) -> int | None:
    """Which operand of a Mul or Div is scores, where the other is one number for all keys that is not known."""
    if not is_standard(node, "Mul", "Div"):
        return None
    for index in (0, 1) if node.op == "Mul" else (0,):
        scores, factor = (analysis[node.inputs[item]] for item in (index, 1 - index))
        same = factor.shape is not None and (not factor.shape or factor.shape[-1] == Poly.of(1))
        if same and is_square(scores.shape) and scores.shape == analysis[node.outputs[0]].shape:
            return None if factor.scalar() is not None else index
    return None


def _matmul(graph: gs.Graph, analysis: Analysis, scores: gs.Tensor) -> gs.Node | None:
    """The MatMul of queries and keys that makes scores, perhaps times numbers; None where others read them, too."""
    while True:
        node = producer(scores)
        if node is None or len(scores.outputs) != 1 or is_output(graph, scores):
            return None
        if is_standard(node, "MatMul"):
            return node
        numbers = [index for index, item in enumerate(node.inputs) if analysis[item].scalar() is not None]
        if not is_standard(node, "Mul", "Div") or len(numbers) != 1 or (node.op == "Div" and numbers[0] == 0):
            return None
        scores = node.inputs[1 - numbers[0]]
