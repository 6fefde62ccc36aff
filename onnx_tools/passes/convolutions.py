# SPDX-License-Identifier: Apache-2.0
"""Convolutions along one axis as what they are: a product of neighbouring rows, side by side, with all taps' weights.

A product runs in half precision whatever the opset, and TensorRT 10.6 gets it right along axes of one
(docs/notes/2026-11-22-extent-of-one.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis.graph import Editor, argument, is_standard, made_by, opset
from ..analysis.symbolic import Analysis

MOST_TAPS = 8
"""Convolutions of more stay: the rows side by side would take too much memory."""
_TURN = [0, 2, 1]
_GLOBAL: Mapping[str, str] = MappingProxyType({"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"})
_AXES_ARE_AN_INPUT = 18  # of both, since this opset


def expand_convolutions(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces convolutions [B,C,S] -> [B,N,S] with constant weights; returns whether there was any.

    Those with strides, in groups, and of other results' sizes than S stay.
    """
    editor, found = Editor(graph), False
    for node in [item for item in graph.nodes if is_standard(item, "Conv")]:
        weight, bias = node.inputs[1], argument(node, 2)
        if not isinstance(weight, gs.Constant) or analysis[node.inputs[0]].rank != 3:
            continue
        taps = weight.values.shape[2]
        step = int(node.attrs.get("dilations", [1])[0])
        pads = _pads(node, step * (taps - 1))
        if taps > MOST_TAPS or pads is None or set(node.attrs.get("strides", [1])) != {1}:
            continue
        if int(node.attrs.get("group", 1)) != 1:
            continue
        _write_product(editor, node, weight.values, bias, pads, step)
        graph.nodes.remove(node)
        found = True
    return found


def expand_global_pools(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces GlobalAveragePool and GlobalMaxPool by reductions; tf2onnx writes the means of norms so."""
    editor, found = Editor(graph), False
    for node in [item for item in graph.nodes if is_standard(item, *_GLOBAL)]:
        rank = analysis[node.inputs[0]].rank
        if rank is None:
            continue
        axes, inputs, attrs = list(range(2, rank)), [node.inputs[0]], dict[str, object](keepdims=1)
        if opset(graph) < _AXES_ARE_AN_INPUT:
            attrs["axes"] = axes
        else:
            inputs.append(editor.constant("axes", np.asarray(axes, np.int64)))
        output = editor.take_over(node.outputs[0])
        editor.node(_GLOBAL[node.op], inputs, stem=output.name, attrs=attrs, output=output)
        node.outputs.clear()
        found = True
    return found


def _pads(node: gs.Node, reach: int) -> tuple[int, int] | None:
    """Zeros ahead and behind; None unless the result is as long as the input, which `reach` zeros make it."""
    kind = node.attrs.get("auto_pad", "NOTSET")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind == "VALID" and not reach:
        return 0, 0
    if kind == "SAME_UPPER":
        return reach // 2, reach - reach // 2
    if kind == "SAME_LOWER":
        return reach - reach // 2, reach // 2
    ahead, behind = node.attrs.get("pads", [0, 0])
    same = kind == "NOTSET" and ahead + behind == reach and min(ahead, behind) >= 0
    return (int(ahead), int(behind)) if same else None


def _is_turn(node: gs.Node) -> bool:
    return is_standard(node, "Transpose") and list(node.attrs.get("perm", ())) == _TURN


def _write_product(
    editor: Editor, node: gs.Node, weight: np.ndarray, bias: gs.Tensor | None, pads: Sequence[int], step: int
) -> None:
    """Transpose, Pad, a Slice for every tap, Concat, MatMul, Add, Transpose, in the place of the node.

    With one tap there is nothing beside a row.
    """
    x, output, name = node.inputs[0], node.outputs[0], node.name or "convolution"
    dtype, taps = weight.dtype, weight.shape[2]

    def op(kind: str, inputs: Sequence[gs.Tensor], **attrs: object) -> gs.Tensor:
        return editor.node(kind, inputs, stem=f"{name}_{kind.lower()}", dtype=dtype, attrs=attrs)

    def numbers(*values: int) -> gs.Constant:
        return editor.constant(f"{name}_numbers", np.asarray(values, np.int64))

    turned = made_by(x, "Transpose")
    rows = turned.inputs[0] if turned is not None and _is_turn(turned) else op("Transpose", [x], perm=_TURN)
    together = rows
    if taps > 1:
        longer = op("Pad", [rows, numbers(0, pads[0], 0, 0, pads[1], 0)])
        beside = []
        for tap in range(taps):
            start, behind = tap * step, (taps - 1 - tap) * step
            end = -behind if behind else np.iinfo(np.int64).max
            beside.append(op("Slice", [longer, numbers(start), numbers(end), numbers(1)]))
        together = op("Concat", beside, axis=2)
    matrix = np.ascontiguousarray(weight.transpose(2, 1, 0).reshape(-1, weight.shape[0]))  # [taps * C, N]
    total = op("MatMul", [together, editor.constant(f"{name}_weight", matrix)])
    if bias is not None:
        total = op("Add", [total, bias])
    node.inputs.clear()
    for reader in [item for item in output.outputs if _is_turn(item)]:
        editor.redirect(reader.outputs[0], total)
    editor.node("Transpose", [total], stem=f"{name}_result", output=editor.take_over(output), attrs={"perm": _TURN})
