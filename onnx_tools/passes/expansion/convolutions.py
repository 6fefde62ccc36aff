# SPDX-License-Identifier: Apache-2.0
"""Convolutions along one axis as what they are: a GEMM of neighbouring rows, side by side, with all taps' weights.

A GEMM runs in half precision whatever the opset, and TensorRT 10.6 gets it right along axes of size 1
(docs/notes/2026-11-22-extent-of-one.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, argument, find_standard, is_standard, made_by
from ...analysis.symbolic import Analysis, permutation, slice_arguments

MOST_TAPS = 8
"""Convolutions with more taps stay: the rows side by side would take too much memory."""
_TRANSPOSE = [0, 2, 1]
_GLOBAL: Mapping[str, str] = MappingProxyType({"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"})


def expand_convolutions(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces convolutions [B,C,S] -> [B,N,S] with constant weights; returns whether there was any.

    Those with strides, with results of another size than S, and with groups of several channels stay. Zeros that a Pad
    puts around the rows first, as causal convolutions have them, count as the convolution's own. Those with more zeros,
    of which a Slice takes S results, have fewer: causal convolutions are written this way, too.
    """
    editor, changed = Editor(graph), False
    for node in find_standard(graph, "Conv"):
        weight, bias = node.inputs[1], argument(node, 2)
        if not isinstance(weight, gs.Constant) or analysis[node.inputs[0]].rank != 3:
            continue
        taps = weight.values.shape[2]
        step = int(node.attrs.get("dilations", [1])[0])
        x, zeros = _before_zeros(analysis, node.inputs[0])
        cut = _cut_after(analysis, node, x)
        pads = _pads(node, step * (taps - 1), zeros, None if cut is None else cut[1])
        if taps > MOST_TAPS or pads is None or set(node.attrs.get("strides", [1])) != {1}:
            continue
        groups = int(node.attrs.get("group", 1))
        if groups != 1 and weight.values.shape[:2] != (groups, 1):
            continue
        node.inputs[0] = x
        if cut is not None:
            results = list(cut[0].outputs)
            cut[0].inputs.clear()
            cut[0].outputs.clear()
            node.outputs = results
        _write_gemm(editor, node, weight.values, bias, pads, step, by_channel=groups != 1)
        graph.nodes.remove(node)
        changed = True
    return changed


def expand_global_pools(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces GlobalAveragePool and GlobalMaxPool by reductions; tf2onnx writes the means of norms this way."""
    editor, changed = Editor(graph), False
    for node in find_standard(graph, *_GLOBAL):
        rank = analysis[node.inputs[0]].rank
        if rank is None:
            continue
        editor.along(_GLOBAL[node.op], node.inputs[0], *range(2, rank), output=node.outputs[0], keepdims=1)
        changed = True
    return changed


def expand_batch_norms(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces BatchNormalization by the product and the sum that it is in inference; returns whether there was any."""
    editor, changed = Editor(graph), False
    for node in find_standard(graph, "BatchNormalization"):
        rank = analysis[node.inputs[0]].rank
        params = [item for item in node.inputs[1:5] if isinstance(item, gs.Constant)]
        if rank is None or rank < 2 or len(params) != 4 or len(node.outputs) != 1 or node.attrs.get("training_mode"):
            continue
        scale, shift, mean, variance = (item.values.astype(np.float64) for item in params)
        factor = scale / np.sqrt(variance + float(node.attrs.get("epsilon", 1e-5)))
        along = (-1, *[1] * (rank - 2))
        numbers = [
            editor.constant(f"{node.outputs[0].name}_{what}", values.reshape(along).astype(params[0].values.dtype))
            for what, values in (("factor", factor), ("shift", shift - mean * factor))
        ]
        output = node.outputs[0]
        product = editor.op("Mul", node.inputs[0], numbers[0], stem=f"{output.name}_scaled")
        editor.op("Add", product, numbers[1], output=output)
        changed = True
    return changed


def _before_zeros(analysis: Analysis, x: gs.Tensor) -> tuple[gs.Tensor, tuple[int, int]]:
    """The rows [B,C,S] before a Pad, and how many zeros it puts before and after them; x and no zeros without one."""
    node = made_by(x, "Pad")
    if node is None or node.attrs.get("mode", "constant") != "constant" or argument(node, 3) is not None:
        return x, (0, 0)
    value, counts = argument(node, 2), analysis[node.inputs[1]].plain_integers()
    if (value is not None and analysis[value].scalar() != 0) or counts is None or len(counts) != 6:
        return x, (0, 0)
    others = [count for axis, count in enumerate(counts) if axis not in (2, 5)]
    return (x, (0, 0)) if any(others) or min(counts) < 0 else (node.inputs[0], (int(counts[2]), int(counts[5])))


def _cut_after(analysis: Analysis, node: gs.Node, x: gs.Tensor) -> tuple[gs.Node, int] | None:
    """The Slice that takes as many of a convolution's results as x has rows, and the number of the first; or None."""
    output = node.outputs[0]
    cut = output.outputs[0] if len(output.outputs) == 1 else None
    if cut is None or not is_standard(cut, "Slice") or cut.inputs[0] is not output:
        return None
    limits = slice_arguments(cut, [analysis[item] for item in cut.inputs])
    shape, rows = analysis[cut.outputs[0]].shape, analysis[x].shape
    if limits is None or limits[2:] != ([2], [1]) or shape is None or rows is None or shape[2] != rows[2]:
        return None
    start = limits[0][0].constant()
    return (cut, start) if start is not None and start >= 0 else None


def _pads(node: gs.Node, reach: int, zeros: tuple[int, int], first: int | None) -> tuple[int, int] | None:
    """The zeros before and after the rows; None unless they are `reach` in all, so that the length stays the same.

    `zeros` are those of a Pad before the node. With `first`, only as many results as rows are taken, from this one on.
    """
    kind = node.attrs.get("auto_pad", "NOTSET")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind == "VALID" and sum(zeros) == reach:
        return zeros
    if any(zeros) and kind in ("SAME_LOWER", "SAME_UPPER"):
        return None
    if kind == "SAME_UPPER":
        return reach // 2, reach - reach // 2
    if kind == "SAME_LOWER":
        return reach - reach // 2, reach // 2
    ahead, after = (own + more for own, more in zip(node.attrs.get("pads", [0, 0]), zeros, strict=True))
    if first is not None:
        ahead, after = ahead - first, reach - ahead + first
    same = kind == "NOTSET" and ahead + after == reach and min(ahead, after) >= 0
    return (int(ahead), int(after)) if same else None


def _is_transpose(node: gs.Node) -> bool:
    return is_standard(node, "Transpose") and permutation(node, 3) == _TRANSPOSE


def _write_gemm(
    editor: Editor,
    node: gs.Node,
    weight: np.ndarray,
    bias: gs.Tensor | None,
    pads: Sequence[int],
    step: int,
    *,
    by_channel: bool,
) -> None:
    """Writes Transpose, Pad, a Slice for every tap, Concat, MatMul, Add and Transpose instead of the node.

    With one tap there is nothing to put side by side. `by_channel`: each channel has its own weights, which multiply
    the numbers side by side before those of each channel are added up.
    """
    x, output, name = node.inputs[0], node.outputs[0], node.name or "convolution"
    taps = weight.shape[2]
    nodes = editor.with_stem(name)
    transposed = made_by(x, "Transpose")
    rows = (
        transposed.inputs[0]
        if transposed is not None and _is_transpose(transposed)
        else nodes.op("Transpose", x, perm=_TRANSPOSE)
    )
    together = rows
    if taps > 1:
        longer = nodes.op("Pad", rows, [0, pads[0], 0, 0, pads[1], 0])
        beside = []
        for tap in range(taps):
            start, after = tap * step, (taps - 1 - tap) * step
            end = -after if after else np.iinfo(np.int64).max
            beside.append(nodes.op("Slice", longer, [start], [end], [1]))
        together = nodes.op("Concat", *beside, axis=2)
    if by_channel:
        factors = editor.constant(f"{name}_weight", np.ascontiguousarray(weight[:, 0].T).reshape(-1))  # [taps * C]
        apart = nodes.reshape(nodes.op("Mul", together, factors), 0, 0, taps, -1)
        total = nodes.along("ReduceSum", apart, 2, keepdims=0)
    else:
        matrix = np.ascontiguousarray(weight.transpose(2, 1, 0).reshape(-1, weight.shape[0]))  # [taps * C, N]
        total = nodes.op("MatMul", together, editor.constant(f"{name}_weight", matrix))
    if bias is not None:
        total = nodes.op("Add", total, bias)
    node.inputs.clear()
    for reader in [item for item in output.outputs if _is_transpose(item)]:
        editor.redirect(reader.outputs[0], total)
    nodes.op("Transpose", total, output=output, perm=_TRANSPOSE)
