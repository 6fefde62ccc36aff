# SPDX-License-Identifier: Apache-2.0
"""Operators that only move elements: reshapes, slices, gathers. It is known exactly where each element comes from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .expr import Index, axes_of, axis_index
from .facts import Facts, Shape, from_elements, remap, sizes_of
from .poly import Poly

TO_THE_END = 10**9
"""Slice limits from here on mean the end: tf2onnx writes 10^9, others the largest integer of 32 or 64 bits."""


def volume(shape: Shape) -> Poly:
    """Number of elements."""
    total = Poly.of(1)
    for size in shape:
        total = total * size
    return total


def _quotient(sizes: Shape, divisors: Sequence[Poly]) -> Poly | None:
    """The product of sizes divided by that of divisors; sizes in both cancel first, even sums such as S + 1."""
    remaining, others = list(sizes), []
    for size in divisors:
        if size in remaining:
            remaining.remove(size)
        else:
            others.append(size)
    return volume(tuple(remaining)).divided_exactly(volume(tuple(others)))


def reshape(x: Facts, target: Sequence[Poly] | None, allow_zero: bool) -> Facts:
    """Reshape to `target` (0 keeps a size, -1 takes what is left)."""
    if target is None:
        return x.without_shape()
    if x.elements is not None and all(size.constant() is not None for size in target):
        sizes = [int(size.constant() or 0) for size in target]
        return from_elements(x.elements.reshape(sizes), x.dtype or "int64")
    if x.shape is None:
        plain = None if any(size.constant() in (0, -1) for size in target) else tuple(target)
        return Facts(plain, x.dtype, x.uniform(), constant=x.constant)
    shape: list[Poly] = []
    for axis, size in enumerate(target):
        keep = size.constant() == 0 and not allow_zero
        if keep and axis >= len(x.shape):
            return x.without_shape()
        shape.append(x.shape[axis] if keep else size)
    free = [axis for axis, size in enumerate(shape) if size.constant() == -1]
    if free:
        rest = _quotient(x.shape, shape[: free[0]] + shape[free[0] + 1 :])
        if rest is None or len(free) > 1:
            return x.without_shape()
        shape[free[0]] = rest
    if volume(tuple(shape)) != volume(x.shape):
        return x.without_shape()
    return Facts(tuple(shape), x.dtype, _reshaped_expr(x, tuple(shape)), constant=x.constant)


def _reshaped_expr(x: Facts, shape: Shape) -> Index | None:
    if x.expr is None or x.shape is None:
        return None
    position, stride = Poly(), Poly.of(1)
    for axis in reversed(range(len(shape))):
        if shape[axis].constant() != 1:
            position = position + axis_index(axis) * stride
        stride = stride * shape[axis]
    mapping: list[Poly] = []
    for size in reversed(x.shape[1:]):
        position, rest = position.divmod(size, sizes_of(shape))
        mapping.append(rest)
    if x.shape:
        mapping.append(position)
    return remap(x.expr, mapping[::-1], shape)  # type: ignore[return-value]


def transpose(x: Facts, order: Sequence[int]) -> Facts:
    """Transpose."""
    if x.shape is None:
        return Facts(dtype=x.dtype, constant=x.constant)
    shape = tuple(x.shape[axis] for axis in order)
    mapping = [axis_index(order.index(axis)) for axis in range(len(x.shape))]
    elements = None if x.elements is None else x.elements.transpose(order)
    return x.move(shape, mapping, elements)


def unsqueeze(x: Facts, axes: Sequence[int] | None) -> Facts:
    """Unsqueeze."""
    if x.shape is None or axes is None:
        return x.without_shape()
    rank = len(x.shape) + len(axes)
    new_axes = sorted(axis % rank for axis in axes)
    remaining = [axis for axis in range(rank) if axis not in new_axes]
    shape = tuple(Poly.of(1) if axis in new_axes else x.shape[remaining.index(axis)] for axis in range(rank))
    elements = None if x.elements is None else np.expand_dims(x.elements, tuple(new_axes))
    return x.move(shape, [axis_index(axis) for axis in remaining], elements)


def squeeze(x: Facts, axes: Sequence[int] | None) -> Facts:
    """Squeeze."""
    if x.shape is None or (axes and not x.shape):
        return x.without_shape()
    if axes is None:
        if any(size.constant() is None for size in x.shape):
            return x.without_shape()
        axes = [axis for axis, size in enumerate(x.shape) if size.constant() == 1]
    removed_axes = {axis % len(x.shape) for axis in axes}
    remaining = [axis for axis in range(len(x.shape)) if axis not in removed_axes]
    shape = tuple(x.shape[axis] for axis in remaining)
    mapping = [Poly() if axis in removed_axes else axis_index(remaining.index(axis)) for axis in range(len(x.shape))]
    elements = None if x.elements is None else x.elements.reshape([x.elements.shape[axis] for axis in remaining])
    return x.move(shape, mapping, elements)


def expand(x: Facts, target: Sequence[Poly] | None) -> Facts:
    """Expand."""
    if x.shape is None or target is None:
        return x.without_shape()
    rank = max(len(x.shape), len(target))
    sizes: list[Poly] = []
    for axis in range(-rank, 0):
        mine = x.shape[axis] if len(x.shape) >= -axis else Poly.of(1)
        theirs = target[axis] if len(target) >= -axis else Poly.of(1)
        if mine.constant() != 1 and theirs.constant() != 1 and mine != theirs:
            return x.without_shape()
        sizes.append(theirs if mine.constant() == 1 else mine)
    shape = tuple(sizes)
    offset = rank - len(x.shape)
    mapping = [
        Poly() if size.constant() == 1 and shape[axis + offset].constant() != 1 else axis_index(axis + offset)
        for axis, size in enumerate(x.shape)
    ]
    return x.move(shape, mapping)


def slice_(x: Facts, starts: Sequence[Poly], ends: Sequence[Poly], axes: Sequence[int], steps: Sequence[int]) -> Facts:
    """Slice. A constant table that is sliced to the sequence's length is taken to be long enough."""
    if x.shape is None:
        return x.without_shape()
    shape: list[Poly | None] = list(x.shape)
    mapping = [axis_index(axis) for axis in range(len(x.shape))]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        if step == -1 and start.constant() == -1 and (end.constant() or 0) <= -TO_THE_END:
            mapping[axis] = size - 1 - axis_index(axis)
            continue
        first, last = _bound(start, size), _bound(end, size)
        if first is None or last is None or step != 1:
            shape[axis] = _static_slice(start, end, step, size)
            mapping[axis] = _first(start, step, size) + axis_index(axis) * step if shape[axis] is not None else Poly()
            continue
        shape[axis] = _length(last - first)
        mapping[axis] = axis_index(axis) + first
    elements = _sliced_elements(x, starts, ends, axes, steps)
    if any(size is None for size in shape):
        return Facts(None, x.dtype, x.uniform(), elements, x.constant)
    sizes = tuple(size for size in shape if size is not None)
    return x.move(sizes, mapping, elements)


def _bound(value: Poly, size: Poly) -> Poly | None:
    """The limit of a slice as a position counted from 0; None where it is not certain."""
    number, total = value.constant(), size.constant()
    if number is not None:
        if number >= TO_THE_END or value == size:
            return size
        if number <= -TO_THE_END:
            return Poly()
        if total is not None:
            return Poly.of(max(0, min(total, number + total if number < 0 else number)))
        distance = size + number if number < 0 else value
        inside = distance.is_non_negative() and (size - distance).is_non_negative()
        return distance if inside or _at_one_end(distance, size) else None
    if value == -size:
        return Poly()  # x[-n:] of n elements
    if total is not None and value.terms and (-value).is_non_negative():
        return size + value  # counted from the end of a constant table
    if value == size or total is not None:
        return value  # within a constant table: the model is limited to its length
    return value if value.is_non_negative() and (size - value).is_non_negative() else None


def _length(size: Poly) -> Poly | None:
    """The size of a slice, if it is certain; an end before the start gives 0, not a negative size."""
    number = size.constant()
    if number is not None:
        return Poly.of(max(0, number))
    certain = size.is_non_negative() or size in (Poly.atom("B") - 1, Poly.atom("S") - 1)
    return size if certain else None


def _at_one_end(position: Poly, size: Poly) -> bool:
    """Whether a limit is one element from either end of a batch or sequence axis, which has at least one element."""
    return size in (Poly.atom("B"), Poly.atom("S")) and position in (Poly.of(1), size - 1)


def _first(start: Poly, step: int, size: Poly) -> Poly:
    total, number = size.constant() or 0, start.constant() or 0
    return Poly.of(range(total)[slice(number, None, step)].start)


def _static_slice(start: Poly, end: Poly, step: int, size: Poly) -> Poly | None:
    numbers = (start.constant(), end.constant(), size.constant())
    if any(item is None for item in numbers):
        # x[:, k:k+1] of a symbolic axis: one element, if there is one; x[:, 0:1] is the first token.
        if step == 1 and numbers[0] == 0 and numbers[1] == 1:
            return Poly.of(1)
        return None
    return Poly.of(len(range(numbers[2] or 0)[slice(numbers[0], numbers[1], step)]))


def _sliced_elements(
    x: Facts, starts: Sequence[Poly], ends: Sequence[Poly], axes: Sequence[int], steps: Sequence[int]
) -> np.ndarray | None:
    if x.elements is None:
        return None
    index = [slice(None)] * x.elements.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last = start.constant(), end.constant()
        if first is None or last is None:
            return None
        index[axis] = slice(max(first, -TO_THE_END), min(last, TO_THE_END), step)
    return x.elements[tuple(index)]


def gather(x: Facts, indices: Facts, axis: int) -> Facts:
    """Gather."""
    if not x.shape or indices.shape is None:
        return Facts(dtype=x.dtype, expr=x.uniform(), constant=x.constant and indices.constant)
    axis %= len(x.shape)
    inner = len(indices.shape)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    constant = x.constant and indices.constant
    elements = None
    numbers = indices.elements
    if x.elements is not None and numbers is not None:
        plain = [item.poly.constant() if isinstance(item, Index) else None for item in numbers.reshape(-1)]
        size = x.elements.shape[axis]
        if all(item is not None and -size <= item < size for item in plain):
            chosen_numbers = np.asarray(plain, dtype=np.int64).reshape(numbers.shape)
            elements = np.take(x.elements, chosen_numbers, axis=axis)
            return Facts(
                shape,
                x.dtype,
                from_elements(np.asarray(elements, dtype=object), x.dtype or "int64").expr,
                np.asarray(elements, dtype=object),
                constant,
            )
    if x.expr is None:
        return Facts(shape, x.dtype, constant=constant)
    where: Poly | None = Poly()
    if axis in axes_of(x.expr):
        index = remap(indices.expr, [axis_index(axis + i) for i in range(inner)], shape)
        where = _position(index, x.shape[axis])
    if where is None:
        return Facts(shape, x.dtype, constant=constant)
    mapping = [
        axis_index(i) if i < axis else where if i == axis else axis_index(i + inner - 1) for i in range(len(x.shape))
    ]
    return Facts(shape, x.dtype, remap(x.expr, mapping, shape), constant=constant)


def _position(index: object, size: Poly) -> Poly | None:
    """A gather's index counted from 0."""
    if not isinstance(index, Index):
        return None
    if index.poly.is_non_negative():
        return index.poly
    number = index.poly.constant()
    return None if number is None else size + number


def gather_elements(x: Facts, indices: Facts, axis: int) -> Facts:
    """GatherElements."""
    shape = indices.shape
    if shape is None or x.expr is None or x.shape is None:
        return Facts(shape, x.dtype, x.uniform())
    axis %= len(shape)
    where: Poly | None = Poly()
    if axis in axes_of(x.expr):
        where = _position(indices.expr, x.shape[axis])
    if where is None:
        return Facts(shape, x.dtype)
    mapping = [where if i == axis else axis_index(i) for i in range(len(shape))]
    return Facts(shape, x.dtype, remap(x.expr, mapping, shape))


def gather_nd(x: Facts, indices: Sequence[Facts], shape: Shape | None) -> Facts:
    """GatherND without batch dimensions; `indices` holds one tensor for each leading axis of x, already separated."""
    if x.shape is None or shape is None:
        return Facts(dtype=x.dtype, expr=x.uniform())
    result = shape + x.shape[len(indices) :]
    if x.expr is None:
        return Facts(result, x.dtype)
    mapping: list[Poly] = []
    for axis, item in enumerate(indices):
        where = _position(item.expr, x.shape[axis])
        if where is None:
            return Facts(result, x.dtype, x.uniform())
        mapping.append(where)
    mapping += [axis_index(len(shape) + i) for i in range(len(x.shape) - len(indices))]
    return Facts(result, x.dtype, remap(x.expr, mapping, result))
