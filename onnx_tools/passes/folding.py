# SPDX-License-Identifier: Apache-2.0
"""Folds what is constant and drops what does nothing, so that the other passes meet fewer forms of the same graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ..analysis import (
    ELEMENTWISE,
    RESHAPES,
    Editor,
    drops_nothing,
    dtype_name,
    find_standard,
    is_output,
    is_standard,
    made_by,
    present,
    tidy,
    used_once,
)
from ..analysis.symbolic import (
    TO_THE_END,
    Analysis,
    Index,
    Number,
    Poly,
    Shape,
    axis_of,
    broadcast_shape,
    slice_arguments,
)
from ..match.chains import square_source
from .base import PassResult
from .shapes import ShapeBuilder, is_of_sizes, shape_source

NAME = "folding"
_SMALL = 4096  # elements: a folded constant may only have more where it replaces the one that it was made from


def folding(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Folds constants and known shapes, takes shapes from the inputs, removes what does nothing."""
    before, editor = len(graph.nodes), Editor(graph)
    shapes = ShapeBuilder(editor, shape_source(graph))
    for node in list(graph.nodes):
        if len(node.outputs) != 1 or not present(node.inputs):
            continue
        if _fold_value(editor, node, analysis) or _fold_arithmetic(editor, node):
            continue
        if _fold_movement(graph, editor, node, analysis):
            continue
        if _unflatten(editor, node, analysis) or _join_views(editor, shapes, node, analysis):
            continue
        _shorten_slice(editor, node, analysis)
        if is_standard(node, "Shape") and node.inputs[0] is not shapes.source:
            polys = analysis[node.outputs[0]].integers()
            if polys is not None and all(poly.atoms() <= {"B", "S"} for poly in polys):
                editor.redirect(node.outputs[0], shapes.build(polys))
                continue
        _bypass(editor, node, analysis)
    for node in find_standard(graph, *ELEMENTWISE):
        _broadcast(editor, node, analysis)
    tidy(graph)
    return PassResult(NAME, max(0, before - len(graph.nodes)))


def _broadcast(editor: Editor, node: gs.Node, analysis: Analysis) -> None:
    """Lets an element-wise operator broadcast its operands itself, where a node before it only does that.

    That node is an Expand, or a Gather that takes the same row of a table everywhere, as for token types of zeros.
    """
    for position, tensor in enumerate(node.inputs):
        narrow = _narrow(editor, tensor, analysis)
        if narrow is None:
            continue
        operands = [item for item in present(node.inputs) if item is not tensor]
        shapes = [*(analysis[item].shape for item in operands), narrow[1]]
        if operands and broadcast_shape(shapes) == analysis[node.outputs[0]].shape is not None:
            node.inputs[position] = narrow[0]


def _narrow(editor: Editor, tensor: gs.Tensor, analysis: Analysis) -> tuple[gs.Tensor, Shape | None] | None:
    """What a tensor holds everywhere along its first axes, and its shape; None where it is not known."""
    node = made_by(tensor, "Expand", "Gather")
    if node is None or node.op == "Expand":
        return None if node is None else (node.inputs[0], analysis[node.inputs[0]].shape)
    table, index = node.inputs[0], analysis[node.inputs[1]]
    row = index.expr.poly.constant() if isinstance(index.expr, Index) else None
    if not isinstance(table, gs.Constant) or len(table.shape) != 2 or axis_of(node, 2) != 0:
        return None
    if row is None or not -table.shape[0] <= row < table.shape[0]:
        return None
    return editor.constant("row", table.values[row]), (Poly.of(int(table.shape[1])),)


def _fold_value(editor: Editor, node: gs.Node, analysis: Analysis) -> bool:
    """Makes a small tensor whose every element is a known number a constant."""
    facts = analysis[node.outputs[0]]
    if facts.elements is None or facts.dtype is None:
        return False
    plain = [_plain(item) for item in facts.elements.reshape(-1)]
    if any(item is None for item in plain):
        return False
    values = np.asarray(plain, dtype=facts.dtype).reshape(facts.elements.shape)
    editor.redirect(node.outputs[0], editor.constant("folded", values))
    return True


def _plain(item: object) -> bool | int | float | None:
    if isinstance(item, Number):
        return item.value
    return item.poly.constant() if isinstance(item, Index) else None


def _cast(node: gs.Node, values: np.ndarray) -> np.ndarray:
    return values.astype(onnx.helper.tensor_dtype_to_np_dtype(int(node.attrs["to"])))


_MOVEMENTS: Mapping[str, Callable[[gs.Node, np.ndarray], np.ndarray]] = MappingProxyType(
    {
        "Cast": _cast,
        "Transpose": lambda node, values: values.transpose(node.attrs.get("perm")),
    }
)


def _fold_arithmetic(editor: Editor, node: gs.Node) -> bool:
    """Folds arithmetic on constants of a few thousand numbers at most, such as weight + 1 in Gemma's norms."""
    if not is_standard(node, *_ARITHMETIC):
        return False
    small = (item for item in node.inputs if isinstance(item, gs.Constant) and item.dtype == np.float32)
    operands = [item for item in small if np.prod(item.shape, dtype=np.int64) <= _SMALL]
    if len(operands) != len(node.inputs):
        return False
    with np.errstate(all="ignore"):
        values = _ARITHMETIC[node.op](*(item.values for item in operands))
    if values.size > _SMALL:
        return False
    editor.redirect(node.outputs[0], editor.constant(f"{node.outputs[0].name}_folded", values))
    return True


_ARITHMETIC: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {"Add": np.add, "Div": np.divide, "Mul": np.multiply, "Sub": np.subtract}
)


def _fold_movement(graph: gs.Graph, editor: Editor, node: gs.Node, analysis: Analysis) -> bool:
    """Folds reshapes of constants, and transposes and casts of them where that stores no large weight twice."""
    source = node.inputs[0]
    shape = analysis[node.outputs[0]].static_shape()
    if is_standard(node, *RESHAPES) and isinstance(source, gs.Constant) and shape is not None:
        editor.redirect(node.outputs[0], editor.constant(source.name, source.values.reshape(shape)))
        return True
    if not is_standard(node, *_MOVEMENTS) or not isinstance(source, gs.Constant):
        return False
    if not used_once(graph, source) and np.prod(source.shape, dtype=np.int64) > _SMALL:
        return False
    editor.redirect(node.outputs[0], editor.constant(source.name, _MOVEMENTS[node.op](node, source.values)))
    return True


def _unflatten(editor: Editor, node: gs.Node, analysis: Analysis) -> bool:
    """Makes view(softmax(x)) of softmax(view(x)), a converter's old Softmax, where the last axis stays the same."""
    if not is_standard(node, "Softmax", "LogSoftmax"):
        return False
    view = made_by(node.inputs[0], "Flatten", "Reshape")
    source = None if view is None else view.inputs[0]
    rank, before = analysis[node.inputs[0]].rank, None if source is None else analysis[source].shape
    after = analysis[node.inputs[0]].shape
    if view is None or source is None or not before or not after or rank is None or before[-1] != after[-1]:
        return False
    if axis_of(node, rank) != rank - 1 or before[-1] == Poly.of(1):
        return False
    result = editor.op(node.op, source, stem=f"{node.outputs[0].name}_unflattened", axis=-1)
    for reader in list(node.outputs[0].outputs):
        shape = analysis[reader.outputs[0]].shape if is_standard(reader, "Reshape") else None
        if shape == before and reader.inputs[0] is node.outputs[0]:
            editor.redirect(reader.outputs[0], result)
    editor.op(view.op, result, *view.inputs[1:], output=node.outputs[0], **view.attrs)
    return True


def _join_views(editor: Editor, shapes: ShapeBuilder, node: gs.Node, analysis: Analysis) -> bool:
    """Makes one Reshape of a view of a view of scores or weights [..., S, S]."""
    source = square_source(analysis, node.outputs[0]) if is_standard(node, *RESHAPES) else None
    shape = analysis[node.outputs[0]].shape
    if source is None or source is node.inputs[0] or shape is None or not is_of_sizes(shape):
        return False
    editor.in_shape(source, shapes.build(list(shape)), node.outputs[0])
    return True


def _shorten_slice(editor: Editor, node: gs.Node, analysis: Analysis) -> None:
    """Leaves out the axes that a Slice takes whole: converters of strided slices name all of them."""
    facts = [analysis[tensor] for tensor in node.inputs]
    limits = slice_arguments(node, facts) if is_standard(node, "Slice") and len(facts) > 2 else None
    sizes = facts[0].shape
    if limits is None or sizes is None:
        return
    starts, ends, axes, steps = limits
    cut = [
        index
        for index, (start, end, axis, step) in enumerate(zip(starts, ends, axes, steps, strict=True))
        if start.constant() != 0 or step != 1 or not (end == sizes[axis] or (end.constant() or 0) >= TO_THE_END)
    ]
    if not cut or len(cut) == len(axes) or any(poly.constant() is None for poly in (*starts, *ends)):
        return
    others = [[values[index] for index in cut] for values in (axes, steps)]
    numbers = [[values[index].constant() for index in cut] for values in (starts, ends)]
    inputs = [editor.constant("slice", np.asarray(values, np.int64)) for values in (*numbers, *others)]
    node.inputs = [node.inputs[0], *inputs]


# Which operands change nothing if they are 0, or 1 in products and quotients: PaddlePaddle writes scale * x + 0.
_NEUTRAL: Mapping[str, tuple[int, ...]] = MappingProxyType({"Add": (0, 1), "Sub": (1,), "Mul": (0, 1), "Div": (1,)})


def _is_neutral(node: gs.Node, index: int, analysis: Analysis) -> bool:
    return analysis[node.inputs[index]].scalar() == (1.0 if node.op in ("Mul", "Div") else 0.0)


def _bypass(editor: Editor, node: gs.Node, analysis: Analysis) -> None:
    source, result = node.inputs[0], node.outputs[0]
    same = is_standard(node, "Identity") or (is_standard(node, "Dropout") and drops_nothing(node))
    if is_standard(node, "Cast"):
        same = analysis[source].dtype == dtype_name(int(node.attrs["to"]))
    if is_standard(node, "Expand", "Reshape"):
        shape = analysis[source].shape
        same = shape is not None and shape == analysis[result].shape
    if is_standard(node, "Slice"):
        limits = slice_arguments(node, [analysis[tensor] for tensor in node.inputs])
        whole = analysis[source].shape is not None and analysis[source].shape == analysis[result].shape
        same = limits is not None and whole and all(step == 1 for step in limits[3])
    if is_standard(node, *_NEUTRAL):
        index = next((index for index in _NEUTRAL[node.op] if _is_neutral(node, index, analysis)), None)
        source = source if index is None else node.inputs[1 - index]
        same = index is not None and analysis[source].shape == analysis[result].shape is not None
    if is_standard(node, "Where"):
        number = analysis[source].scalar()
        source = node.inputs[1 if number else 2]
        same = number is not None and analysis[source].shape == analysis[result].shape is not None
    if not same:
        return
    if not is_output(editor.graph, result):
        editor.redirect(result, source)
    elif source.inputs and not is_output(editor.graph, source):
        maker = source.inputs[0]
        position = next(i for i, tensor in enumerate(maker.outputs) if tensor is source)
        editor.redirect(source, editor.take_over(result))
        maker.outputs[position] = result
