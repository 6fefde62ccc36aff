# SPDX-License-Identifier: Apache-2.0
"""The results of padfree operators: the shapes in their descriptions, with the sizes of a node's inputs."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from ...operators import OPERATORS
from .facts import Facts, InputFacts, Shape
from .poly import Poly

_GROUP, _ANY = "...", "*"
_FREE = ("B", "S", "T", "L")
"""Letters that stand for themselves if none of a node's inputs has them."""
_TYPES = {"int32": "int32", "float32": "float32", "fp8": "float8_e4m3fn", "int8": "int8"}


def padfree(node: gs.Node, input_facts: InputFacts) -> list[Facts]:
    """Facts about the outputs of a padfree node."""
    spec = OPERATORS[node.op]
    attributes = spec.complete(node.attrs)
    inputs = list(zip(spec.inputs_for(attributes), input_facts, strict=True))
    sizes = _Letters({item.letter: Poly.of(int(attributes[item.name])) for item in spec.attributes if item.letter})
    for tensor, facts in inputs:
        sizes.bind(tensor.axes, facts.shape)
    of_activations = next((facts.dtype for tensor, facts in inputs if "act" in tensor.type), None)
    return [
        Facts(sizes.shape(tensor.axes), _TYPES.get(tensor.type, of_activations))
        for tensor in spec.outputs_for(attributes)
    ]


class _Letters:
    """The sizes that a description's letters have in one node; None: not known."""

    def __init__(self, of_attributes: dict[str, Poly]) -> None:
        self._sizes: dict[str, Poly | None] = dict(of_attributes)
        self._group: Shape | None = None

    def bind(self, axes: tuple[str, ...], shape: Shape | None) -> None:
        """Takes over the sizes of one input."""
        many = next((at for at, axis in enumerate(axes) if axis in (_GROUP, _ANY)), None)
        count = 0 if shape is None else len(shape)
        if shape is not None and (count != len(axes) if many is None else count < len(axes) - 1):
            shape = None
        after = 0 if many is None else len(axes) - 1 - many  # axes after the group
        for at, axis in enumerate(axes):
            if axis.isalpha() and self._sizes.get(axis) is None:
                position = at if many is None or at < many else count - (len(axes) - at)
                self._sizes[axis] = None if shape is None else shape[position]
        if shape is not None and many is not None and axes[many] == _GROUP and self._group is None:
            self._group = shape[many : count - after]

    def shape(self, axes: tuple[str, ...]) -> Shape | None:
        """The shape of an output, None where some of it is not known."""
        sizes: list[Poly] = []
        for axis in axes:
            size = self._group if axis == _GROUP else self._size(axis)
            if size is None:
                return None
            sizes += size
        return tuple(sizes)

    def _size(self, axis: str) -> Shape | None:
        """One axis: a sum of products of letters and numbers, each over a number."""
        terms = [self._term(term) for term in axis.split("+")]
        return None if None in terms else (sum((term for term in terms if term is not None), Poly()),)

    def _term(self, term: str) -> Poly | None:
        numerator, _, divisor = term.partition("/")
        product = _product(self._factor(factor) for factor in numerator.split("*"))
        if product is None or not divisor:
            return product
        number = product.constant()
        return None if number is None else Poly.of(number // int(divisor))

    def _factor(self, factor: str) -> Poly | None:
        if factor.isdigit():
            return Poly.of(int(factor))
        return self._sizes.get(factor, Poly.atom(factor) if factor in _FREE else None)


def _product(factors: Iterable[Poly | None]) -> Poly | None:
    product: Poly | None = Poly.of(1)
    for factor in factors:
        product = None if product is None or factor is None else product * factor
    return product
