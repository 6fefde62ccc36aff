# SPDX-License-Identifier: Apache-2.0
"""A tensor in whose axes batch and sequence are merged or in another order, seen as a tensor [B,S,...]."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import B, Editor, S, once
from ...analysis.symbolic import Analysis, Poly, Shape
from ..shapes import ShapeBuilder

_BATCH, _SEQUENCE = 0, 1
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class View:
    """A tensor as a transposition and a reshape of another one, `tensor` [B,S,*rest].

    `groups`: for every axis of the viewed tensor, the axes of `tensor` whose product it is, outermost first. Axes of
    size 1 may be in no group. `has_batch` and `has_sequence`: whether the first two axes are B and S, or 1.
    """

    tensor: gs.Tensor
    rest: tuple[int, ...]
    groups: Groups
    has_batch: bool = True
    has_sequence: bool = True

    def size(self, axis: int) -> Poly:
        """The size of an axis of `tensor`."""
        if axis == _BATCH:
            return B if self.has_batch else Poly.of(1)
        if axis == _SEQUENCE:
            return S if self.has_sequence else Poly.of(1)
        return Poly.of(self.rest[axis - 2])

    def tokens(self, axis: int) -> tuple[int, ...]:
        """Which of batch (0) and sequence (1) an axis of the viewed tensor holds, outermost first."""
        return tuple(item for item in self.groups[axis] if item < 2)

    def width(self, axis: int) -> int:
        """The size of an axis of the viewed tensor without the batch and the sequence in it."""
        return int(np.prod([self.rest[item - 2] for item in self.groups[axis] if item >= 2], dtype=np.int64))

    @property
    def is_whole(self) -> bool:
        """Whether it has both batch and sequence."""
        return self.has_batch and self.has_sequence


@functools.lru_cache(4096)
def is_odd(shape: Shape | None) -> bool:
    """Whether a shape holds batch and sequence once each, but not as [B,...,S,...], such as [S,B,E] or [B*S,E]."""
    dynamic_sizes = [size for size in shape or () if size.constant() is None]
    product = Poly.of(1)
    for size in dynamic_sizes:
        product = product * size
    times = product.divided_exactly(B * S)
    if shape is None or times is None or not times.constant():
        return False
    return not (len(dynamic_sizes) == 2 and shape[0] == B and dynamic_sizes[1] == S)


class Views:
    """Makes tensors [B,S,...] for views, and the viewed tensors again, each once."""

    def __init__(self, editor: Editor, analysis: Analysis, shapes: ShapeBuilder) -> None:
        self._editor = editor
        self._analysis = analysis
        self._shapes = shapes
        self._transposes: dict[tuple[str, str, tuple[int, ...]], gs.Tensor] = {}
        self._narrow: dict[str, tuple[gs.Tensor, Groups]] = {}  # by name of [B,1,...]: as [B,...], and its groups

    def seed(self, tensor: gs.Tensor) -> View | None:
        """The view that the shape alone tells: of B, S and others in any order, without B or S, or of [B*H,S,...]."""
        facts = self._analysis[tensor]
        shape = facts.shape
        if not shape or (isinstance(tensor, gs.Constant) and facts.static_shape() is not None):
            return None
        batch = [axis for axis, size in enumerate(shape) if size.divided_exactly(B) is not None and size.terms]
        sequence = [axis for axis, size in enumerate(shape) if size == S]
        is_static = all(size.constant() is not None for axis, size in enumerate(shape) if axis not in batch + sequence)
        if not is_static or len(batch) > 1 or len(sequence) > 1 or not batch + sequence or batch == sequence:
            return None
        heads = None if not batch else (shape[batch[0]].divided_exactly(B) or Poly()).constant()
        if batch and heads is None:
            return None
        rest, groups, order = list[int](), list[tuple[int, ...]](), list[int]()
        for axis, size in enumerate(shape):
            if axis in sequence:
                groups.append((_SEQUENCE,))
            elif axis in batch and heads == 1:
                groups.append((_BATCH,))
            else:
                groups.append((_BATCH, 2 + len(rest)) if axis in batch else (2 + len(rest),))
                rest.append(heads or 1 if axis in batch else size.constant() or 0)
                order.append(axis)
        view = View(tensor, tuple(rest), tuple(groups), bool(batch), bool(sequence))
        if heads not in (None, 1):
            if not sequence or (batch[0], sequence[0]) != (0, 1):
                return None
            apart = self._reshape(tensor, [B, Poly.of(heads or 1), *shape[1:]])
            front = self._transpose(apart, [0, 2, 1, *range(3, len(shape) + 1)])
            return replace(view, tensor=front)
        return replace(view, tensor=self._front(tensor, view))

    def _front(self, tensor: gs.Tensor, view: View) -> gs.Tensor:
        """The tensor as [B or 1, S or 1, *rest], where each of its axes is one of these."""
        positions = {group[0]: axis for axis, group in enumerate(view.groups)}
        front = [positions[axis] for axis in (_BATCH, _SEQUENCE) if axis in positions]
        permuted = self._transpose(tensor, [*front, *(positions[2 + i] for i in range(len(view.rest)))])
        if len(front) == 2:
            return permuted
        return self._reshape(permuted, [view.size(axis) for axis in range(2 + len(view.rest))])

    def apart(self, view: View, target: Shape) -> View | None:
        """The view of the tensor reshaped to `target`; None where that is no view of [B,S,...]."""
        queue = [(axis, view.size(axis)) for group in view.groups for axis in group]
        pieces: dict[int, list[int]] = {axis: [] for axis in range(2, 2 + len(view.rest))}
        parts: list[list[tuple[int, int]]] = []
        for size in target:
            want, group = size, list[tuple[int, int]]()
            while want.constant() != 1:
                if not queue:
                    return None
                axis, have = queue.pop(0)
                quotient = want.divided_exactly(have)
                part, whole = want.constant(), have.constant()
                if quotient is None:
                    if part is None or whole is None or whole % part:
                        return None
                    queue.insert(0, (axis, Poly.of(whole // part)))
                    have, quotient = want, Poly.of(1)
                want = quotient
                if axis >= 2:
                    group.append((axis, len(pieces[axis])))
                    pieces[axis].append(have.constant() or 0)
                else:
                    group.append((axis, 0))
            parts.append(group)
        if any(size.constant() != 1 for _, size in queue):
            return None
        starts, rest = dict[int, int](), list[int]()
        for axis, sizes in pieces.items():
            starts[axis] = 2 + len(rest)
            rest += sizes or [1]
        groups = tuple(tuple(axis if axis < 2 else starts[axis] + i for axis, i in group) for group in parts)
        tensor = view.tensor
        if tuple(rest) != view.rest:
            tensor = self._regroup(view, tensor, rest)
        return replace(view, tensor=tensor, rest=tuple(rest), groups=groups)

    def plain(self, view: View) -> View | None:
        """The view with at most one axis other than B and S in a group, all in order, none of size 1; or None."""
        order, sizes, groups = list[int](), list[int](), list[tuple[int, ...]]()
        for axis, group in enumerate(view.groups):
            inner = [item for item in group if item >= 2 and view.rest[item - 2] != 1]
            indices = [group.index(item) for item in inner]
            if indices and indices[-1] - indices[0] != len(indices) - 1:
                return None
            order += inner
            tokens = [item for item in group if item < 2]
            if inner:
                tokens.insert(sum(1 for item in group[: indices[0]] if item < 2), 2 + len(sizes))
                sizes.append(view.width(axis))
            groups.append(tuple(tokens))
        other_axes = [axis for axis in range(2, 2 + len(view.rest)) if axis not in order]
        tensor = self._transpose(view.tensor, [0, 1, *order, *other_axes])
        if len(sizes) != len(view.rest):
            tensor = self._regroup(view, tensor, sizes)
        return replace(view, tensor=tensor, rest=tuple(sizes), groups=tuple(groups))

    def spread(self, view: View, widths: Sequence[int], sizes: Sequence[int]) -> gs.Tensor:
        """The tensor of a plain view with an axis for each of `sizes` that is not 1; `widths` are its own sizes."""
        widths_of_axes = [width for width, size in zip(widths, sizes, strict=True) if size != 1]
        if tuple(widths_of_axes) == view.rest:
            return view.tensor
        return self._regroup(view, view.tensor, widths_of_axes)

    def view_of(self, view: View, shape: Shape) -> gs.Tensor:
        """The viewed tensor, of the given shape, made of the tensor [B,S,...]."""
        if view.tensor.name in self._narrow and view.groups == self._narrow[view.tensor.name][1]:
            return self._narrow[view.tensor.name][0]
        order = [axis for group in view.groups for axis in group]
        other_axes = [axis for axis in range(2 + len(view.rest)) if axis not in order]
        permuted = self._transpose(view.tensor, [*order, *other_axes])
        return (
            permuted
            if all(len(group) == 1 for group in view.groups) and not other_axes
            else self._reshape(permuted, shape)
        )

    def of_rows(self, rows: gs.Tensor, rest: tuple[int, ...], groups: Groups) -> View:
        """The view of a tensor [B,*rest] with nothing along the sequence."""
        wide = self._reshape(rows, [B, Poly.of(1), *(Poly.of(size) for size in rest)])
        if groups == ((_BATCH,), *((2 + index,) for index in range(len(rest)))):
            self._narrow[wide.name] = (rows, groups)
        return View(wide, rest, groups, has_sequence=False)

    def regroup(self, view: View) -> View:
        """The view with its tensor reshaped to all axes that the view has, including those of size 1."""
        return replace(view, tensor=self._regroup(view, view.tensor, view.rest))

    def _transpose(self, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
        if list(perm) == list(range(len(perm))):
            return tensor
        key = (tensor.name, "Transpose", tuple(perm))
        return once(self._transposes, key, lambda: self._editor.op("Transpose", tensor, stem="moved", perm=list(perm)))

    def _regroup(self, view: View, tensor: gs.Tensor, rest: Sequence[int]) -> gs.Tensor:
        """A tensor with the first two axes of the view's tensor, reshaped to [B,S,*rest]."""
        return self._reshape(tensor, [view.size(0), view.size(1), *(Poly.of(size) for size in rest)], leading=2)

    def _reshape(self, tensor: gs.Tensor, shape: Sequence[Poly], leading: int = 0) -> gs.Tensor:
        """Reshape to `shape`, of which the first `leading` sizes are those of the tensor."""
        key = (tensor.name, ", ".join(str(size) for size in shape), ())
        if key not in self._transposes:
            constants = [size.constant() for size in shape[leading:]]
            sizes = [0] * leading + [-1 if size is None else size for size in constants]
            target = self._shapes.build(list(shape))
            if sizes.count(-1) <= 1:
                target = self._editor.integers(*sizes)
            self._transposes[key] = self._editor.in_shape(tensor, target, stem="regrouped")
        return self._transposes[key]
