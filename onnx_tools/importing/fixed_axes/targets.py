# SPDX-License-Identifier: Apache-2.0
"""Operators that take sizes as numbers: the results of Reshape, Expand and Slice tell which numbers are sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from ...analysis.symbolic import Facts, InputFacts, Poly, Shape, movement, slice_arguments
from .findings import Findings
from .reshape import align
from .unknowns import is_unknown

TO_THE_END = (1 << 63) - 1


class Targets:
    """Rules by operator: the facts about a node's result; they note the numbers that its target gets for every size."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._unknowns = findings.unknowns
        self.rules: Mapping[str, Callable[[gs.Node, InputFacts], Facts | None]] = {
            "Expand": self._expand, "Reshape": self._reshape, "Slice": self._slice,
        }  # fmt: skip

    def _reshape(self, node: gs.Node, input_facts: InputFacts) -> Facts | None:
        x, target = input_facts[0], input_facts[1].integers()
        if x.shape is None or target is None:
            return None
        keeps = not node.attrs.get("allowzero", 0)
        sizes = [x.shape[i] if item == Poly() and keeps else item for i, item in enumerate(target)]
        numbers = [None if item == Poly.of(-1) else self._unknowns.value(item) for item in sizes]
        if None in numbers:
            rest = self._unknowns.value(movement.volume(x.shape))
            for number in numbers:
                rest //= max(1, number or 1)
            numbers = [rest if number is None else number for number in numbers]
        shape = self._align(x.shape, [number or 0 for number in numbers])
        if shape is None:
            raise self._findings.error(node, f"makes {numbers} of [{', '.join(str(size) for size in x.shape)}]")
        self._target(node, sizes, shape)
        return movement.reshape(self._unknowns.with_resolved(x), shape, True)

    def _align(self, shape: Shape, target: list[int]) -> Shape | None:
        """The shape that a Reshape gives; an unknown that is cut into several axes is a plain number."""
        unknown = [size for size in shape if size.constant() is None and all(is_unknown(atom) for atom in size.atoms())]
        for count in range(len(unknown) + 1):
            for plain in itertools.combinations(unknown, count):
                sizes = tuple(Poly.of(self._unknowns.value(size)) if size in plain else size for size in shape)
                result = align(sizes, target, self._unknowns.value)
                if result is not None:
                    for size in plain:
                        self._unknowns.unify(size, Poly.of(self._unknowns.value(size)), "a Reshape")
                    return result
        return None

    def _target(self, node: gs.Node, sizes: list[Poly], shape: Shape) -> None:
        """Notes the target that a Reshape or Expand must get, where its own numbers are not the right sizes."""
        for size, target_size in zip(sizes, shape, strict=True):
            if size not in (Poly.of(-1), Poly.of(1)) and size.constant() is None:
                self._findings.unify(node, size, target_size)
        pairs = zip(sizes, shape, strict=True)
        if any(size != Poly.of(-1) and self._unknowns.resolve(size) != target_size for size, target_size in pairs):
            self._findings.numbers[id(node), 1] = shape

    def _expand(self, node: gs.Node, input_facts: InputFacts) -> Facts | None:
        x, target = input_facts[0], input_facts[1].integers()
        if x.shape is None or target is None:
            return None
        offset = max(len(x.shape), len(target))
        wide = (*(Poly.of(1) for _ in range(offset - len(x.shape))), *x.shape)
        sizes = [*(Poly.of(1) for _ in range(offset - len(target))), *target]
        result: list[Poly] = []
        for mine, theirs in zip(wide, sizes, strict=True):
            number, plain = self._unknowns.value(theirs), theirs.constant()
            if mine != Poly.of(1) and (number == self._unknowns.value(mine) or number == 1):
                result.append(mine)
            elif plain is not None and self._unknowns.may_be_axis(plain):
                result.append(self._unknowns.fresh(plain))
            else:
                result.append(theirs)
        self._target(node, sizes, tuple(result))
        return movement.expand(x, result)

    def _slice(self, node: gs.Node, input_facts: InputFacts) -> Facts | None:
        x, limits = input_facts[0], slice_arguments(node, input_facts)
        if x.shape is None or limits is None:
            return None
        starts, ends, axes, steps = limits
        new: list[Poly] = []
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size, first, last = x.shape[axis], start.constant(), end.constant()
            if first is None or last is None or step != 1 or last < 0 or last > TO_THE_END // 2:
                new.append(end)
            elif not self._findings.is_axis(size):
                length = last - first
                is_size = first >= 0 and last < self._unknowns.value(size) and self._unknowns.may_be_axis(length)
                new.append(self._unknowns.fresh(length) + first if is_size else end)
            elif last >= self._unknowns.value(size):
                new.append(Poly.of(TO_THE_END))
            elif (first, last) == (0, 1):
                new.append(end)
            else:
                raise self._findings.error(node, f"takes the positions {first} to {last} of [{size}]")
        if new == ends:
            return None
        if "ends" in node.attrs:
            raise self._findings.error(node, "has limits of an old opset")
        self._findings.numbers[id(node), 2] = tuple(new)
        return movement.slice_(x, starts, new, axes, steps)
