# SPDX-License-Identifier: Apache-2.0
"""How the facts about a node's outputs follow from those about its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ...operators import DOMAIN
from ..graph import STANDARD_DOMAINS, dtype_name
from ..onnx_operators import OPERATORS, ShapeRule, Work
from . import movement
from .arguments import argument_facts, axes_along, axes_of_node, axis_of, permutation, slice_arguments, split_sizes
from .expr import COMPARISONS, ELEMENTWISE, Apply, Element, Index, Number, RowSum, apply, axis_index, number, uncast
from .facts import MAX_ELEMENTS, Facts, InputFacts, are_constant, broadcast_shape, elementwise, from_elements
from .indexing import Lookup, eye_like, gather_nd, scatter_nd, trilu
from .matmul import attention, conv, gemm, matmul
from .own import padfree
from .poly import Poly
from .sizes import sizes

Results = Facts | list[Facts] | None
"""What a rule tells: of the only output, of all, or nothing."""


def looks_further(node: gs.Node) -> bool:
    """Whether its rule looks up more tensors than the node's inputs."""
    return node.op in ("GatherND", "ScatterND")


def infer(node: gs.Node, input_facts: InputFacts, lookup: Lookup) -> list[Facts] | None:
    """Facts about the outputs, or None where no rule knows the operator."""
    results = _results(node, input_facts, lookup)
    return [results] if isinstance(results, Facts) else results


def _results(node: gs.Node, input_facts: InputFacts, lookup: Lookup) -> Results:
    if node.domain == DOMAIN:
        return padfree(node, input_facts)
    if node.domain not in STANDARD_DOMAINS or not input_facts:
        return None
    if node.op in _LOOKING_RULES:
        return _LOOKING_RULES[node.op](node, input_facts, lookup)
    record = OPERATORS.get(node.op)
    if record is not None and record.shape is ShapeRule.FIRST:
        return Facts(input_facts[0].shape, input_facts[0].dtype, constant=are_constant(input_facts))
    if node.op in ELEMENTWISE:
        return _elementwise(node, input_facts)
    if record is not None and record.shape is ShapeRule.BROADCAST:
        shape = broadcast_shape([item.shape for item in input_facts])
        return Facts(shape, input_facts[0].dtype, constant=are_constant(input_facts))
    if record is not None and record.work is Work.REDUCTION:
        return _reduce(node, input_facts)
    rule = _RULES.get(node.op)
    return sizes(node, input_facts) if rule is None else rule(node, input_facts)


def _elementwise(node: gs.Node, input_facts: InputFacts) -> Facts:
    dtype = "bool" if node.op in COMPARISONS else input_facts[1].dtype if node.op == "Where" else input_facts[0].dtype
    other = (node.op in ("Max", "Min") and len(input_facts) != 2) or (node.op == "Mod" and node.attrs.get("fmod", 0))
    if other or any(item.is_empty() for item in node.inputs):
        shaping = input_facts[:1] if node.op == "Clip" else input_facts
        return Facts(broadcast_shape([item.shape for item in shaping]), dtype)
    return elementwise(node.op, input_facts, dtype)


def _layer_norm(node: gs.Node, input_facts: InputFacts) -> Results:
    """The result, and the mean and the inverse deviation with axes of size 1."""
    x = input_facts[0]
    if not x.shape:
        return [Facts(dtype=x.dtype)]
    axis = axis_of(node, len(x.shape))
    statistics = (*x.shape[:axis], *(Poly.of(1) for _ in x.shape[axis:]))
    return [Facts(x.shape, x.dtype), Facts(statistics, "float32"), Facts(statistics, "float32")]


def _is_nan(_: gs.Node, input_facts: InputFacts) -> Facts:
    return Facts(input_facts[0].shape, "bool", constant=input_facts[0].constant)


def _shape(node: gs.Node, input_facts: InputFacts) -> Facts:
    shape = input_facts[0].shape
    if shape is None:
        return Facts(dtype="int64")
    part = shape[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
    return from_elements(_indices(part), "int64")


def _size(_: gs.Node, input_facts: InputFacts) -> Facts:
    shape = input_facts[0].shape
    if shape is None:
        return Facts((), "int64")
    return from_elements(_indices([movement.volume(shape)]).reshape(()), "int64")


def _indices(values: Sequence[Poly]) -> np.ndarray:
    elements = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        elements[position] = Index(value)
    return elements


def _squeeze(node: gs.Node, input_facts: InputFacts) -> Facts:
    axes = axes_of_node(node, input_facts)
    if axes is None and argument_facts(node, input_facts, 1) is not None:
        return Facts(dtype=input_facts[0].dtype)
    return movement.squeeze(input_facts[0], axes)


def _flatten(node: gs.Node, input_facts: InputFacts) -> Facts:
    if input_facts[0].shape is None:
        return Facts(dtype=input_facts[0].dtype)
    axis = int(node.attrs.get("axis", 1))
    axis = axis + len(input_facts[0].shape) if axis < 0 else axis
    target = [movement.volume(input_facts[0].shape[:axis]), movement.volume(input_facts[0].shape[axis:])]
    return movement.reshape(input_facts[0], target, True)


def _slice(node: gs.Node, input_facts: InputFacts) -> Facts:
    x = input_facts[0]
    limits = slice_arguments(node, input_facts)
    if limits is None:
        return x.without_shape()
    return movement.slice_(x, *limits)


def _concat(node: gs.Node, input_facts: InputFacts) -> Facts:
    dtype, constant = input_facts[0].dtype, are_constant(input_facts)
    shapes = [item.shape for item in input_facts]
    if any(not shape for shape in shapes):
        return Facts(dtype=dtype, constant=constant)
    shape = list(shapes[0] or ())
    axis = axis_of(node, len(shape))
    total = Poly()
    for item in shapes:
        total = total + (item or ())[axis]
    shape[axis] = total
    arrays = [item.elements for item in input_facts]
    if all(array is not None for array in arrays):
        concatenated = np.concatenate([array for array in arrays if array is not None], axis=axis)
        return replace(from_elements(concatenated, dtype or "int64"), constant=constant)
    return Facts(tuple(shape), dtype, constant=constant)


def _split(node: gs.Node, input_facts: InputFacts) -> Results:
    x, count = input_facts[0], len(node.outputs)
    if not x.shape:
        return [Facts(dtype=x.dtype)] * count
    axis = axis_of(node, len(x.shape))
    sizes = split_sizes(node, input_facts)
    if sizes is None:
        return [Facts(dtype=x.dtype)] * count
    if x.elements is not None:
        parts = np.split(x.elements, np.cumsum(sizes)[:-1], axis=axis)
        return [replace(from_elements(part, x.dtype or "int64"), constant=x.constant) for part in parts]
    shapes = [tuple(Poly.of(size) if i == axis else old for i, old in enumerate(x.shape)) for size in sizes]
    return [Facts(shape, x.dtype, constant=x.constant) for shape in shapes]


def _range(_: gs.Node, input_facts: InputFacts) -> Facts:
    dtype = input_facts[0].dtype or "int64"
    limits = [_whole_number(item) for item in input_facts]
    start, limit, step = limits
    if start is None or limit is None or step is None or step.constant() not in (1, -1):
        return Facts(dtype=dtype)
    downwards = step.constant() == -1
    size, value = (start - limit, start - axis_index(0)) if downwards else (limit - start, start + axis_index(0))
    if dtype.startswith("int"):
        return Facts((size,), dtype, Index(value, dtype))
    return Facts((size,), dtype, apply("Cast", (Index(value, "int64"),), dtype))


def _whole_number(facts: Facts) -> Poly | None:
    """The value of a 0-D tensor, or of a known 1-D tensor with one element, if it is a whole number of any type."""
    if facts.rank not in (0, 1) or (facts.elements is None and facts.expr is None):
        return None
    values = [facts.expr] if facts.elements is None else list(facts.elements.reshape(-1))
    value = values[0] if len(values) == 1 and (facts.elements is not None or facts.rank == 0) else None
    while isinstance(value, Apply) and value.op == "Cast" and value.dtype != "bool":
        value = value.args[0]
    if isinstance(value, Number) and float(value.value).is_integer():
        return Poly.of(int(value.value))
    return value.poly if isinstance(value, Index) else None


def _tile(_: gs.Node, input_facts: InputFacts) -> Facts:
    """The axes' sizes times the repeats; if only axes of size 1 are repeated, it is an Expand."""
    shape, repeats = input_facts[0].shape, input_facts[1].integers()
    if shape is None or repeats is None or len(repeats) != len(shape):
        return Facts(dtype=input_facts[0].dtype)
    sizes = tuple(size * count for size, count in zip(shape, repeats, strict=True))
    plain, elements = input_facts[1].plain_integers(), input_facts[0].elements
    if elements is not None and plain is not None and elements.size * math.prod(plain) <= MAX_ELEMENTS:
        tiles = from_elements(np.tile(elements, plain), input_facts[0].dtype or "int64")
        return replace(tiles, constant=input_facts[0].constant and input_facts[1].constant)
    if all(1 in (size.constant(), count.constant()) for size, count in zip(shape, repeats, strict=True)):
        return movement.expand(input_facts[0], list(sizes))
    constant = input_facts[0].constant and input_facts[1].constant
    return replace(input_facts[0], shape=sizes, elements=None, expr=input_facts[0].uniform(), constant=constant)


def _cum_sum(node: gs.Node, input_facts: InputFacts) -> Facts:
    """Sums of one number up to each position; Keras counts positions this way."""
    x, axis = input_facts[0], input_facts[1].plain_integers()
    facts = Facts(x.shape, x.dtype, constant=are_constant(input_facts))
    step = x.uniform()
    number_ = step.poly.constant() if isinstance(step, Index) else None
    if number_ is None or not x.shape or axis is None or len(axis) != 1 or node.attrs.get("reverse", 0):
        return facts
    ahead = axis_index(axis[0] % len(x.shape)) + (0 if node.attrs.get("exclusive", 0) else 1)
    return replace(facts, expr=Index(ahead * number_, x.dtype or "int64"))


def _constant_of_shape(node: gs.Node, input_facts: InputFacts, lookup: Lookup) -> Facts:
    value = node.attrs.get("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.values)
    dtype = array.dtype.name
    sizes = input_facts[0].integers()
    sizes = _sizes_of_parts(node, lookup) if sizes is None else sizes
    expr = number(array.reshape(-1)[0], dtype)
    if sizes is None:
        return Facts(None, dtype, expr)
    plain = [size.constant() for size in sizes]
    elements = None
    if all(size is not None for size in plain) and 0 <= math.prod(size or 0 for size in plain) <= MAX_ELEMENTS:
        elements = np.full([size or 0 for size in plain], expr, dtype=object)
    return Facts(tuple(sizes), dtype, expr, elements, input_facts[0].constant)


def _sizes_of_parts(node: gs.Node, lookup: Lookup) -> list[Poly] | None:
    """Sizes that a Concat joins, some of them unknown, such as the largest number in an input: those get names."""
    makers = node.inputs[0].inputs
    if not makers or makers[0].op != "Concat":
        return None
    sizes: list[Poly] = []
    for part in makers[0].inputs:
        facts = lookup(part)
        integers = facts.integers()
        if integers is None and facts.static_shape() != (1,):
            return None
        sizes += [Poly.atom(f"{node.outputs[0].name}:{len(sizes)}")] if integers is None else integers
    return sizes


def _reduce(node: gs.Node, input_facts: InputFacts) -> Facts:
    x = input_facts[0]
    axes, keep = axes_along(node, input_facts), bool(node.attrs.get("keepdims", 1))
    dtype, constant = (
        "int64" if node.op in ("ArgMax", "ArgMin") else x.dtype,
        are_constant(input_facts),
    )
    if not x.shape:
        return Facts(dtype=dtype, constant=constant)
    if axes is None:
        if len(input_facts) > 1 or node.attrs.get("noop_with_empty_axes", 0):
            return Facts(dtype=dtype, constant=constant)
        axes = list(range(len(x.shape)))
    axis_set = set(axes)
    shape = [Poly.of(1) if i in axis_set else size for i, size in enumerate(x.shape) if keep or i not in axis_set]
    if node.op == "ReduceProd" and len(x.shape) == 1 and x.integers() is not None:
        product = movement.volume(tuple(x.integers() or ()))
        return replace(from_elements(_indices([product]).reshape([1] * keep), x.dtype or "int64"), constant=constant)
    expr = _row_sum(x) if node.op == "ReduceSum" and axis_set == {1} else None
    return Facts(tuple(shape), dtype, expr, constant=constant)


def _row_sum(x: Facts) -> RowSum | None:
    """The sum over axis 1 of a graph input, looking through casts."""
    expr = uncast(x.expr)
    if not isinstance(expr, Element) or expr.indices != (axis_index(0), axis_index(1)):
        return None
    return RowSum(expr.source, axis_index(0), x.dtype or expr.dtype)


_LOOKING_RULES: Mapping[str, Callable[[gs.Node, InputFacts, Lookup], Results]] = MappingProxyType(
    {"ConstantOfShape": _constant_of_shape, "GatherND": gather_nd, "ScatterND": scatter_nd}
)
_RULES: Mapping[str, Callable[[gs.Node, InputFacts], Results]] = MappingProxyType(
    {
        "Attention": attention,
        "Cast": lambda node, facts: elementwise("Cast", facts[:1], dtype_name(int(node.attrs["to"]))),
        "CastLike": lambda _, facts: elementwise("Cast", facts[:1], facts[1].dtype),
        "Concat": _concat,
        "Conv": conv,
        "CumSum": _cum_sum,
        "Dropout": lambda _, facts: facts[0],
        "EyeLike": lambda node, facts: eye_like(node, facts[0]),
        "Expand": lambda _, facts: movement.expand(facts[0], facts[1].integers()),
        "Flatten": _flatten,
        "Gather": lambda node, facts: movement.gather(facts[0], facts[1], axis_of(node, facts[0].rank)),
        "GatherElements": lambda node, facts: movement.gather_elements(
            facts[0], facts[1], axis_of(node, facts[0].rank)
        ),
        "Gemm": gemm,
        "Identity": lambda _, facts: facts[0],
        "IsInf": _is_nan,
        "IsNaN": _is_nan,
        "LayerNormalization": _layer_norm,
        "MatMul": matmul,
        "Range": _range,
        "Reshape": lambda node, facts: movement.reshape(
            facts[0], facts[1].integers(), bool(node.attrs.get("allowzero", 0))
        ),
        "Shape": _shape,
        "Size": _size,
        "Slice": _slice,
        "Split": _split,
        "Squeeze": _squeeze,
        "Tile": _tile,
        "Transpose": lambda node, facts: movement.transpose(facts[0], permutation(node, facts[0].rank or 0)),
        "Trilu": trilu,
        "Unsqueeze": lambda node, facts: movement.unsqueeze(facts[0], axes_of_node(node, facts)),
    }
)
