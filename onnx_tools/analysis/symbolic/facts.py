# SPDX-License-Identifier: Apache-2.0
"""Facts about one tensor, and how those of constants and of element-wise results follow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .expr import Apply, Expr, Index, apply, axes_of, axis_index, number, size_of, substitute
from .poly import Atom, Axis, Poly

Shape = tuple[Poly, ...]
Elements = npt.NDArray[np.object_]

# Larger constants are weights: nobody computes shapes or masks with them, and reading them costs time.
MAX_ELEMENTS = 64
MAX_NUMBERS = 8  # floating-point numbers: scales, thresholds, mask values
MAX_PATTERN = 1 << 18
# Expressions larger than those of masks and positions are dropped: a chain of x + x would double them every time.
MAX_EXPRESSION = 150


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a tensor; None means not known."""

    shape: Shape | None = None
    dtype: str | None = None
    expr: Expr | None = None  # one element, in terms of its own axes
    elements: Elements | None = None  # every element of a small tensor: an Index or a Number each
    constant: bool = False  # made of constants alone

    @property
    def rank(self) -> int | None:
        """Number of axes."""
        return None if self.shape is None else len(self.shape)

    def says_the_same(self, other: Facts) -> bool:
        """Whether both say the same about a tensor."""
        if (self.shape, self.dtype, self.constant, self.expr) != (other.shape, other.dtype, other.constant, other.expr):
            return False
        if self.elements is None or other.elements is None:
            return self.elements is other.elements
        return np.array_equal(self.elements, other.elements)

    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None where it depends on the inputs or is not known."""
        if self.shape is None:
            return None
        sizes = [size.constant() for size in self.shape]
        return None if any(size is None for size in sizes) else tuple(size for size in sizes if size is not None)

    def scalar(self) -> float | None:
        """The value that all elements share, if it is known."""
        expr = self.uniform()
        if isinstance(expr, Index):
            value = expr.poly.constant()
            return None if value is None else float(value)
        return None if expr is None or not hasattr(expr, "value") else float(expr.value)

    def uniform(self) -> Expr | None:
        """The expression if it is the same for every element."""
        return self.expr if self.expr is not None and not axes_of(self.expr) else None

    def without_shape(self) -> Facts:
        """What is left of the facts where elements go to unknown places."""
        return Facts(dtype=self.dtype, expr=self.uniform(), constant=self.constant)

    def move(self, shape: Shape, mapping: Sequence[Poly], elements: Elements | None = None) -> Facts:
        """Facts of a tensor whose elements are this one's.

        Args:
            shape: the new tensor's.
            mapping: for every axis of this tensor, where along it an element of the new one lies.
            elements: the new tensor's, if they are known.
        """
        return Facts(shape, self.dtype, remap(self.expr, mapping, shape), elements, self.constant)

    def integers(self) -> list[Poly] | None:
        """The elements of a 0-D or 1-D integer tensor."""
        if self.elements is None or self.elements.ndim > 1:
            return None
        polys = [item.poly for item in self.elements.reshape(-1) if isinstance(item, Index)]
        return polys if len(polys) == self.elements.size else None

    def plain_integers(self) -> list[int] | None:
        """The elements of a 0-D or 1-D tensor of known integers."""
        polys = self.integers()
        values = None if polys is None else [poly.constant() for poly in polys]
        if values is None or any(value is None for value in values):
            return None
        return [value for value in values if value is not None]


InputFacts = Sequence[Facts]
"""What is known of a node's inputs, in their order."""


def are_constant(input_facts: InputFacts) -> bool:
    """Whether all of these tensors are made of constants alone."""
    return all(item.constant for item in input_facts)


def sizes_of(shape: Shape) -> dict[int, Poly]:
    """Axis number -> size."""
    return dict(enumerate(shape))


def from_elements(elements: Elements, dtype: str) -> Facts:
    """Facts of a small tensor whose elements are all known."""
    shape = tuple(Poly.of(size) for size in elements.shape)
    flat = list(elements.reshape(-1))
    expr = flat[0] if flat and all(item == flat[0] for item in flat) else None
    return Facts(shape, dtype, expr, elements)


def constant_facts(shape: Sequence[int], dtype: str, values: np.ndarray | None) -> Facts:
    """Facts of a constant; `values` may be left out for large ones."""
    if values is None:
        return Facts(tuple(Poly.of(size) for size in shape), dtype, constant=True)
    if values.size > MAX_ELEMENTS:
        return _of_values(tuple(shape), dtype, values)
    return _of_bytes(tuple(shape), dtype, values.dtype, values.tobytes())


@functools.lru_cache(1024)
def _of_bytes(shape: tuple[int, ...], dtype: str, kind: np.dtype, data: bytes) -> Facts:
    """Facts of a small constant, cached: graphs have many with the same values, such as axes, sizes and scales."""
    facts = _of_values(shape, dtype, np.frombuffer(data, kind).reshape(shape))
    if facts.elements is not None:
        facts.elements.setflags(write=False)  # they are shared with other graphs
    return facts


def _of_values(shape: tuple[int, ...], dtype: str, values: np.ndarray) -> Facts:
    sizes = tuple(Poly.of(size) for size in shape)
    elements: Elements | None = None
    if values.size <= (MAX_ELEMENTS if values.dtype.kind in "iub" else MAX_NUMBERS):
        elements = np.empty(values.size, dtype=object)
        elements[:] = [number(value, dtype) for value in values.reshape(-1).tolist()]
        elements = elements.reshape(values.shape)
    return Facts(sizes, dtype, _pattern(values, dtype), elements, constant=True)


def _pattern(values: np.ndarray, dtype: str) -> Expr | None:
    """The expression of a constant that is the same everywhere, or that counts up along one axis; else None."""
    if not values.size:
        return None
    first = values.reshape(-1)[0]
    if (values == first).all():
        return number(first, dtype)
    if values.dtype.kind not in "iu":
        return None
    for axis, size in enumerate(values.shape):
        pattern = np.arange(size).reshape([-1 if i == axis else 1 for i in range(values.ndim)]) + first
        if np.array_equal(np.broadcast_to(pattern, values.shape), values):
            return Index(axis_index(axis) + int(first), dtype)
    return None


def remap(expr: Expr | None, mapping: Sequence[Poly], sizes: Shape) -> Expr | None:
    """The expression with axis i replaced by mapping[i], in a tensor of the given sizes."""
    if expr is None:
        return None
    values: dict[Atom, Poly] = {Axis(i): poly for i, poly in enumerate(mapping)}
    return substitute(expr, values, sizes_of(sizes))


def broadcast_shape(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of an element-wise result, or None where it is not certain."""
    if any(shape is None for shape in shapes):
        return None
    full_shapes = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in full_shapes), default=0)
    result = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in full_shapes if len(shape) >= -axis}
        sizes = {size for size in sizes if size.constant() != 1} or {Poly.of(1)}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop())
    return tuple(result)


def broadcast_expr(facts: Facts, shape: Shape) -> Expr | None:
    """The expression of a tensor in terms of the axes of the broadcast result."""
    if facts.expr is None or facts.shape is None:
        return facts.uniform()
    if facts.shape == shape:
        return facts.expr
    offset = len(shape) - len(facts.shape)
    mapping = []
    for axis, size in enumerate(facts.shape):
        stretched = size.constant() == 1 and shape[axis + offset].constant() != 1
        mapping.append(Poly() if stretched else axis_index(axis + offset))
    return remap(facts.expr, mapping, shape)


def elementwise(op: str, operands: Sequence[Facts], dtype: str | None) -> Facts:
    """Facts of op applied to broadcast operands; `op` is a name of the ELEMENTWISE table, or Cast."""
    shape = broadcast_shape([facts.shape for facts in operands])
    constant = all(facts.constant for facts in operands)
    if dtype is None:
        return Facts(shape, dtype, constant=constant)
    expr: Expr | None = None
    if shape is not None:
        exprs = [broadcast_expr(facts, shape) for facts in operands]
        present = tuple(item for item in exprs if item is not None)
        if len(present) == len(exprs) and _is_small(present):
            expr = apply(op, present, dtype)
    elements = _elementwise_elements(op, operands, dtype)
    if elements is not None and expr is None:
        expr = from_elements(elements, dtype).expr
    return Facts(shape, dtype, expr, elements, constant)


def _is_small(exprs: Sequence[Expr]) -> bool:
    return sum(size_of(item) for item in exprs) <= MAX_EXPRESSION


def _elementwise_elements(op: str, operands: Sequence[Facts], dtype: str) -> Elements | None:
    arrays = [facts.elements for facts in operands]
    if any(array is None for array in arrays):
        return None
    spread = np.broadcast_arrays(*[array for array in arrays if array is not None])
    result = np.empty(spread[0].shape, dtype=object)
    for position in np.ndindex(*result.shape):
        parts = tuple(array[position] for array in spread)
        if not _is_small(parts):
            return None
        item = apply(op, parts, dtype)
        if isinstance(item, Apply):
            return None
        result[position] = item
    return result
