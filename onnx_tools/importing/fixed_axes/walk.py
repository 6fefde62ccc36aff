# SPDX-License-Identifier: Apache-2.0
"""Follows sizes through a graph with fixed axes, and finds out which of its numbers stand for batch or sequence.

Every constant whose size or value could be that of a fixed axis gets an unknown. Operators that need equal sizes bind
them: [B,S,16] + [1,7,16] makes the 7 an S. What nothing binds is a plain number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis.graph import is_standard, made_by, node_name
from ...analysis.layout_rules import ELEMENTWISE
from ...analysis.symbolic import movement
from ...analysis.symbolic.analysis import constant_of, facts_of_inputs
from ...analysis.symbolic.expr import Index
from ...analysis.symbolic.facts import Facts, Shape
from ...analysis.symbolic.poly import Poly
from ...analysis.symbolic.rules import Known, axes_of_node, infer, slice_arguments
from .reshape import aligned
from .unknowns import Unknowns, ambiguous, is_unknown

Place = tuple[int, int]  # node's id and number of its input
TO_THE_END = (1 << 63) - 1
_FEW = 8  # elements; longer integer tensors are no shapes

# Inputs that say what an operator does; in them a number is read as it is, or by a rule of its own.
_STRUCTURE: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "CumSum": (1,), "Expand": (1,), "OneHot": (1,), "Pad": (1, 2, 3), "Reshape": (1,), "Resize": (1, 2, 3),
        "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,),
    }
)  # fmt: skip
# Operators through which numbers reach shapes and indices.
_NUMBERS = ELEMENTWISE | {"Concat", "ConstantOfShape", "Expand", "Range", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass
class Found:
    """What is to be exchanged, in terms of sizes that may still be unknowns."""

    axes: dict[Place, Shape] = field(default_factory=dict)  # shapes of constants
    numbers: dict[Place, tuple[Poly, ...]] = field(default_factory=dict)  # elements of small integer tensors
    views: dict[int, Shape] = field(default_factory=dict)  # gathers that move nothing, and the shapes they give


class Walk:
    """One walk through a sorted graph."""

    def __init__(self, graph: gs.Graph, unknowns: Unknowns) -> None:
        self.found = Found()
        self.facts: dict[str, Facts] = facts_of_inputs(graph)
        self._unknowns = unknowns
        self._rules: Mapping[str, Callable[[gs.Node, Known], Facts | None]] = {
            "Concat": self._concat, "Expand": self._expand, "Gather": self._gather, "GatherND": self._gather_nd,
            "Gemm": self._gemm, "MatMul": self._matmul, "ReduceMean": self._mean, "Reshape": self._reshape,
            "Slice": self._slice, "Split": self._split, "Squeeze": self._squeeze,
        }  # fmt: skip
        for node in graph.nodes:
            self._visit(node)

    def _visit(self, node: gs.Node) -> None:
        known = [self._input(node, position, tensor) for position, tensor in enumerate(node.inputs)]
        rule = self._rules.get(node.op) if is_standard(node, node.op) else None
        own: Facts | None = None
        if rule is not None:
            own = rule(node, known)
        elif is_standard(node, *ELEMENTWISE):
            self._broadcast(node, [item.shape for item in known])
        known = [self._unknowns.known(item) for item in known]
        found = [own] if own is not None else infer(node, known, lambda tensor: self._known(tensor)) or []
        for position, tensor in enumerate(node.outputs):
            facts = found[position] if position < len(found) else Facts(constant=all(item.constant for item in known))
            self.facts[tensor.name] = self._checked(node, tensor, facts)

    def _known(self, tensor: gs.Tensor) -> Facts:
        return self._unknowns.known(self.facts.get(tensor.name, Facts()))

    def _input(self, node: gs.Node, position: int, tensor: gs.Tensor) -> Facts:
        if not isinstance(tensor, gs.Constant):
            return self._known(tensor)
        facts, unknowns = constant_of(tensor), self._unknowns
        if position in _STRUCTURE.get(node.op, ()):
            return facts
        integers = facts.integers()
        counts = isinstance(facts.expr, Index) and facts.expr.poly.constant() is None
        if integers is not None and len(integers) <= _FEW and not counts:
            plain = [item.constant() or 0 for item in integers]
            if node.op not in _NUMBERS or (node.op == "ConstantOfShape" and len(plain) == 1 and plain[0] <= _FEW):
                return facts  # the latter makes numbers for shapes too
            polys = [unknowns.fresh(i) if unknowns.may_be_axis(i) else Poly.of(i) for i in plain]
            self.found.numbers[id(node), position] = tuple(polys)
            elements = np.empty(len(polys), dtype=object)
            elements[:] = [Index(poly, facts.dtype or "int64") for poly in polys]
            elements = elements.reshape(tensor.shape)
            expr = elements.reshape(-1)[0] if len(polys) == 1 else facts.expr
            return Facts(facts.shape, facts.dtype, expr, elements, True)
        if not any(unknowns.may_be_axis(int(size)) for size in tensor.shape):
            return facts
        shape = tuple(unknowns.fresh(int(i)) if unknowns.may_be_axis(int(i)) else Poly.of(int(i)) for i in tensor.shape)
        self.found.axes[id(node), position] = shape
        return Facts(shape, facts.dtype, facts.expr, None, True)

    def _checked(self, node: gs.Node, tensor: gs.Tensor, facts: Facts) -> Facts:
        """The facts; the shape must be the file's own at the file's sizes, and is taken from there if not known."""
        declared = [size if isinstance(size, int) else None for size in tensor.shape or ()]
        if facts.shape is None:
            if tensor.shape is None or None in declared:
                return facts
            sizes = [int(size) for size in declared if size is not None]
            fresh = self._unknowns.fresh
            shape = tuple(fresh(size) if self._unknowns.may_be_axis(size) else Poly.of(size) for size in sizes)
            return Facts(shape, facts.dtype, facts.uniform(), None, facts.constant)
        if tensor.shape is not None and len(declared) == len(facts.shape):
            for size, number in zip(facts.shape, declared, strict=True):
                if number is not None and all(isinstance(atom, str) for atom in size.atoms()):
                    self._same_number(node, size, number)
        return facts

    def _same_number(self, node: gs.Node, size: Poly, number: int) -> None:
        try:
            value = self._unknowns.value(size)
        except KeyError:
            return
        if value != number:
            raise self._error(node, f"makes an axis of {number} where {size} was expected")

    def _error(self, node: gs.Node, reason: str) -> Exception:
        return ambiguous(self._unknowns.fixed, f"'{node_name(node)}' ({node.op}) {reason}")

    def _unify(self, node: gs.Node, first: Poly, second: Poly) -> None:
        self._unknowns.unify(first, second, f"'{node_name(node)}' ({node.op})")

    def _broadcast(self, node: gs.Node, shapes: list[Shape | None]) -> None:
        known = [shape for shape in shapes if shape is not None]
        for axis in range(1, max((len(shape) for shape in known), default=0) + 1):
            sizes = [shape[-axis] for shape in known if len(shape) >= axis]
            sizes = [size for size in sizes if self._unknowns.resolve(size) != Poly.of(1)]
            for size in sizes[1:]:
                self._unify(node, sizes[0], size)

    def _concat(self, node: gs.Node, known: Known) -> None:
        shapes = [item.shape for item in known]
        first = shapes[0]
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return
        joined = int(node.attrs["axis"]) % len(first)
        for axis, size in enumerate(first):
            for shape in shapes[1:]:
                if axis != joined and shape is not None:
                    self._unify(node, size, shape[axis])

    def _matmul(self, node: gs.Node, known: Known) -> None:
        a, b = known[0].shape, known[1].shape
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return
        self._contract(node, known, a[-1], b[-2])
        self._broadcast(node, [a[:-2], b[:-2]])

    def _gemm(self, node: gs.Node, known: Known) -> None:
        a, b = known[0].shape, known[1].shape
        if a is not None and b is not None:
            first, second = int(node.attrs.get("transA", 0)), int(node.attrs.get("transB", 0))
            self._contract(node, known, a[1 - first], b[second])

    def _contract(self, node: gs.Node, known: Known, first: Poly, second: Poly) -> None:
        self._unify(node, first, second)
        if known[0].constant != known[1].constant and self._is_axis(first):
            raise self._error(node, "has weights for every place of the sequence or the batch")

    def _is_axis(self, size: Poly) -> bool:
        return bool({"B", "S"} & self._unknowns.resolve(size).atoms())

    def _mean(self, node: gs.Node, known: Known) -> None:
        axes, shape = axes_of_node(node, known, 1), known[0].shape
        if shape is not None and any(self._is_axis(shape[axis]) for axis in axes or range(len(shape))):
            raise self._error(node, "averages over all places, padding included")

    def _split(self, node: gs.Node, known: Known) -> None:
        shape = known[0].shape
        if shape is not None and self._is_axis(shape[int(node.attrs.get("axis", 0))]):
            raise self._error(node, "cuts the sequence or the batch into parts")

    def _squeeze(self, node: gs.Node, known: Known) -> None:
        axes, shape = axes_of_node(node, known, 1), known[0].shape
        if shape is not None and axes is None:
            axes = [axis for axis, size in enumerate(shape) if self._unknowns.value(size) == 1]
        if shape is not None and any(self._is_axis(shape[axis]) for axis in axes or ()):
            raise self._error(node, "drops the axis of the batch")

    def _reshape(self, node: gs.Node, known: Known) -> Facts | None:
        x, target = known[0], known[1].integers()
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
        shape = self._aligned(x.shape, [number or 0 for number in numbers])
        if shape is None:
            raise self._error(node, f"makes {numbers} of [{', '.join(str(size) for size in x.shape)}]")
        self._target(node, sizes, shape)
        return movement.reshape(self._unknowns.known(x), shape, True)

    def _aligned(self, shape: Shape, target: list[int]) -> Shape | None:
        """The shape that a Reshape gives; an unknown that is cut into several axes is a plain number."""
        unknown = [size for size in shape if size.constant() is None and all(is_unknown(atom) for atom in size.atoms())]
        for count in range(len(unknown) + 1):
            for plain in itertools.combinations(unknown, count):
                sizes = tuple(Poly.of(self._unknowns.value(size)) if size in plain else size for size in shape)
                result = aligned(sizes, target, self._unknowns.value)
                if result is not None:
                    for size in plain:
                        self._unknowns.unify(size, Poly.of(self._unknowns.value(size)), "a Reshape")
                    return result
        return None

    def _target(self, node: gs.Node, sizes: list[Poly], shape: Shape) -> None:
        """Notes what the target of a Reshape or Expand must be, where its numbers are not that by themselves."""
        for size, wanted in zip(sizes, shape, strict=True):
            if size not in (Poly.of(-1), Poly.of(1)) and size.constant() is None:
                self._unify(node, size, wanted)
        pairs = zip(sizes, shape, strict=True)
        if any(size != Poly.of(-1) and self._unknowns.resolve(size) != wanted for size, wanted in pairs):
            self.found.numbers[id(node), 1] = shape

    def _expand(self, node: gs.Node, known: Known) -> Facts | None:
        x, target = known[0], known[1].integers()
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

    def _slice(self, node: gs.Node, known: Known) -> Facts | None:
        x, limits = known[0], slice_arguments(node, known)
        if x.shape is None or limits is None:
            return None
        starts, ends, axes, steps = limits
        new: list[Poly] = []
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size, first, last = x.shape[axis], start.constant(), end.constant()
            if first is None or last is None or step != 1 or last < 0 or last > TO_THE_END // 2:
                new.append(end)
            elif not self._is_axis(size):
                length = last - first
                is_size = first >= 0 and last < self._unknowns.value(size) and self._unknowns.may_be_axis(length)
                new.append(self._unknowns.fresh(length) + first if is_size else end)
            elif last >= self._unknowns.value(size):
                new.append(Poly.of(TO_THE_END))
            elif (first, last) == (0, 1):
                new.append(end)
            else:
                raise self._error(node, f"takes the places {first} to {last} of [{size}]")
        if new == ends:
            return None
        if "ends" in node.attrs:
            raise self._error(node, "has limits of an old opset")
        self.found.numbers[id(node), 2] = tuple(new)
        return movement.slice_(x, starts, new, axes, steps)

    def _gather(self, node: gs.Node, known: Known) -> Facts | None:
        """Elements of [B*S] in their own order are a view of it."""
        x, index = known[0], known[1]
        if not x.shape or x.constant or int(node.attrs.get("axis", 0)) != 0 or not self._is_axis(x.shape[0]):
            return None
        if index.shape is None or not isinstance(index.expr, Index):
            return None
        places = self._unknowns.grid(index.expr.poly, index.shape)
        if not np.array_equal(places.reshape(-1), np.arange(self._unknowns.value(x.shape[0]))):
            return None
        shape = aligned(x.shape[:1], places.shape, self._unknowns.value)
        return None if shape is None else self._view(node, x, index.shape, shape + x.shape[1:])

    def _gather_nd(self, node: gs.Node, known: Known) -> Facts | None:
        """Elements x[b, s] at the places b, s of a grid are x with more axes."""
        x, shape = known[0], known[1].shape
        columns = self._columns(node, known[1])
        if x.shape is None or shape is None or columns is None or len(columns) != len(x.shape) or x.constant:
            return None
        target, axis = [Poly.of(1)] * (len(shape) - 1), -1
        for size, places in zip(x.shape, columns, strict=True):
            counting = [i for i, n in enumerate(places.shape) if n > 1 and np.any(np.diff(places, axis=i))]
            number = self._unknowns.value(size)
            free = axis + 1 if number == 1 else None
            place = counting[0] if len(counting) == 1 else free if not counting else None
            if place is None or place <= axis or place >= len(target):
                return None
            along = np.arange(number).reshape([-1 if i == place else 1 for i in range(places.ndim)])
            if not np.array_equal(places, np.broadcast_to(along, places.shape)):
                return None
            target[place], axis = size, place
        numbers = [self._unknowns.value(size) for size in target]
        return self._view(node, x, shape[:-1], tuple(target)) if numbers == list(columns[0].shape) else None

    def _columns(self, node: gs.Node, index: Facts) -> list[np.ndarray] | None:
        """The places along each axis: of a constant, or of what a Concat put together."""
        tensor, shape = node.inputs[1], index.shape
        if isinstance(tensor, gs.Constant):
            return [tensor.values[..., column] for column in range(tensor.shape[-1])]
        concat = made_by(tensor, "Concat")
        if concat is None or shape is None or int(concat.attrs["axis"]) not in (-1, len(shape) - 1):
            return None
        found = []
        for position, item in enumerate(concat.inputs):
            facts = self._input(concat, position, item)
            if facts.shape is None or not isinstance(facts.expr, Index) or facts.shape[-1].constant() != 1:
                return None
            found.append(self._unknowns.grid(facts.expr.poly, facts.shape)[..., 0])
        return found

    def _view(self, node: gs.Node, x: Facts, before: Shape, shape: Shape) -> Facts:
        for size, wanted in zip(before, shape, strict=False):
            if self._unknowns.resolve(size) != Poly.of(1):
                self._unify(node, size, wanted)
        self.found.views[id(node)] = shape
        return movement.reshape(x, shape, True)
