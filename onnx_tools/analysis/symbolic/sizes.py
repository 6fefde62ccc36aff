# SPDX-License-Identifier: Apache-2.0
"""Sizes of the results of less common operators: nothing follows their values, but all after them needs the sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_graphsurgeon as gs

from ..graph import dtype_name
from .arguments import argument_facts, axis_of
from .facts import Facts, InputFacts, Shape, are_constant, broadcast_shape
from .matmul import matmul_shape
from .poly import Poly

# Results with the shape of the first input, in a type of their own.
_TYPED_BY_ATTRIBUTE = frozenset({"Bernoulli", "RandomNormalLike", "RandomUniformLike"})


def sizes(node: gs.Node, input_facts: InputFacts) -> list[Facts] | None:
    """Facts about the outputs, or None where no rule here knows the operator."""
    constant = are_constant(input_facts)
    if node.op in _TYPED_BY_ATTRIBUTE:  # drawn anew in every run: no constant
        return [Facts(input_facts[0].shape, dtype_name(node.attrs.get("dtype")) or input_facts[0].dtype)]
    rule = _RULES.get(node.op)
    if rule is None:
        return None
    results = rule(node, input_facts)
    results = [results] if isinstance(results, Facts) else results
    return [Facts(item.shape, item.dtype, constant=constant) for item in results]


def _einsum(node: gs.Node, input_facts: InputFacts) -> Facts:
    """Every letter has one size; `...` stands for axes that are broadcast."""
    dtype = input_facts[0].dtype
    equation = str(node.attrs["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(input_facts) or any(item.shape is None for item in input_facts):
        return Facts(dtype=dtype)
    letters: dict[str, Poly] = {}
    wide: list[Shape] = []
    for term, item in zip(terms, input_facts, strict=True):
        before, dots, after = term.partition("...")
        shape = item.shape or ()
        rest = len(shape) - len(before) - len(after)
        if rest < 0 or (rest and not dots):
            return Facts(dtype=dtype)
        if dots:
            wide.append(shape[len(before) : len(before) + rest])
        labels = [*zip(before, shape, strict=False), *zip(after, shape[len(shape) - len(after) :], strict=True)]
        for letter, size in labels:
            if letters.setdefault(letter, size).constant() == 1:
                letters[letter] = size
    middle = broadcast_shape(wide)
    if middle is None:
        return Facts(dtype=dtype)
    if not arrow:
        once = sorted(letter for letter in letters if left.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    before, dots, after = right.partition("...")
    shape = (*(letters[letter] for letter in before), *(middle if dots else ()), *(letters[letter] for letter in after))
    return Facts(shape, dtype)


def _pad(node: gs.Node, input_facts: InputFacts) -> Facts:
    """Pads that are added to the sizes; negative ones crop."""
    x, pads, axes = input_facts[0], input_facts[1].integers(), argument_facts(node, input_facts, 3)
    padded_axes = list(range(x.rank or 0)) if axes is None else axes.plain_integers()
    if x.shape is None or pads is None or padded_axes is None or len(pads) != 2 * len(padded_axes):
        return Facts(dtype=x.dtype)
    shape = list(x.shape)
    for number, axis in enumerate(padded_axes):
        shape[axis] = shape[axis] + pads[number] + pads[number + len(padded_axes)]
    return Facts(tuple(shape), x.dtype)


def _top_k(node: gs.Node, input_facts: InputFacts) -> list[Facts]:
    x, count = input_facts[0], input_facts[1].integers()
    if not x.shape or count is None:
        return [Facts(dtype=x.dtype), Facts(dtype="int64")]
    axis = axis_of(node, len(x.shape))
    shape = (*x.shape[:axis], count[0], *x.shape[axis + 1 :])
    return [Facts(shape, x.dtype), Facts(shape, "int64")]


def _one_hot(node: gs.Node, input_facts: InputFacts) -> Facts:
    shape, depth = input_facts[0].shape, input_facts[1].integers()
    if shape is None or depth is None:
        return Facts(dtype=input_facts[2].dtype)
    axis = axis_of(node, len(shape) + 1)
    return Facts((*shape[:axis], depth[0], *shape[axis:]), input_facts[2].dtype)


def _quantize(node: gs.Node, input_facts: InputFacts) -> Facts:
    zero = argument_facts(node, input_facts, 2)
    kind = node.attrs.get("output_dtype", 0)
    return Facts(input_facts[0].shape, (zero.dtype if zero else None) or (dtype_name(kind) if kind else "uint8"))


def _global_pool(_: gs.Node, input_facts: InputFacts) -> Facts:
    x = input_facts[0]
    shape = None if x.shape is None else (*x.shape[:2], *(Poly.of(1) for _ in x.shape[2:]))
    return Facts(shape, x.dtype)


def _recurrent(node: gs.Node, input_facts: InputFacts) -> list[Facts]:
    """X [S,B,I] (layout 1: [B,S,I]) to Y [S,D,B,H] and the last states [D,B,H]."""
    x, hidden = input_facts[0], node.attrs.get("hidden_size")
    if x.shape is None or len(x.shape) != 3 or hidden is None:
        return [Facts(dtype=x.dtype)] * len(node.outputs)
    directions = Poly.of(2 if str(node.attrs.get("direction", "forward")) == "bidirectional" else 1)
    width = Poly.of(int(hidden))
    first, second = x.shape[:2]
    if int(node.attrs.get("layout", 0)):
        whole, last = (first, second, directions, width), (first, directions, width)
    else:
        whole, last = (first, directions, second, width), (directions, second, width)
    return [Facts(whole, x.dtype), *[Facts(last, x.dtype)] * (len(node.outputs) - 1)]


_RULES: Mapping[str, Callable[[gs.Node, InputFacts], Facts | list[Facts]]] = MappingProxyType(
    {
        "DequantizeLinear": lambda _, facts: Facts(facts[0].shape, facts[1].dtype),
        "DynamicQuantizeLinear": lambda _, facts: [
            Facts(facts[0].shape, "uint8"),
            Facts((), "float32"),
            Facts((), "uint8"),
        ],
        "Einsum": _einsum,
        "GRU": _recurrent,
        "GlobalAveragePool": _global_pool,
        "GlobalMaxPool": _global_pool,
        "LSTM": _recurrent,
        "MatMulInteger": lambda _, facts: Facts(matmul_shape(facts[0].shape, facts[1].shape), "int32"),
        "OneHot": _one_hot,
        "Pad": _pad,
        "QLinearMatMul": lambda _, facts: Facts(matmul_shape(facts[0].shape, facts[3].shape), facts[7].dtype),
        "QuantizeLinear": _quantize,
        "RNN": _recurrent,
        "TopK": _top_k,
    }
)
