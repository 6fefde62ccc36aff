# SPDX-License-Identifier: Apache-2.0
"""Numbers that may stand for the batch or the sequence, and their values as far as equal sizes tell them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...analysis.symbolic import Atom, Axis, Division, Facts, Index, Poly, Shape, substitute
from ...errors import RewriteError
from .sizes import EXPORT_AGAIN, FixedSizes

B, S = Poly.atom("B"), Poly.atom("S")
_PRIMES = (61, 127, 131, 137)  # for dynamic sizes: models hardly have them, and products of them are unique


class Unknowns:
    """Atoms '?0', '?1', ... with the value that each has in the file, and the sizes that they are bound to so far."""

    def __init__(self, sizes: FixedSizes) -> None:
        self.sizes = sizes
        free = [prime for prime in _PRIMES if prime not in (sizes.batch, sizes.sequence)]
        self._values: dict[str, int] = {"B": sizes.batch or free[0], "S": sizes.sequence or free[1]}
        self._bound: dict[Atom, Poly] = {}

    def may_be_axis(self, value: int) -> bool:
        """Whether a number of the file could stand for a fixed axis. 1 broadcasts, and need not become one."""
        return value > 1 and value in (self.sizes.batch, self.sizes.sequence)

    def fresh(self, value: int) -> Poly:
        """A new unknown."""
        name = f"?{len(self._values)}"
        self._values[name] = value
        return Poly.atom(name)

    def value(self, size: Poly) -> int:
        """The number that the size is in the file."""
        return size.evaluate(self._values.__getitem__)

    def resolve(self, size: Poly) -> Poly:
        """The size with its bound unknowns replaced."""
        while any(atom in self._bound for atom in size.atoms()):
            size = size.substitute(self._bound, {})
        return size

    def final(self, size: Poly) -> Poly:
        """The size with all unknowns replaced; those that nothing has bound are plain numbers."""
        size = self.resolve(size)
        rest: dict[Atom, Poly] = {atom: Poly.of(self._values[str(atom)]) for atom in size.atoms() if is_unknown(atom)}
        return size.substitute(rest, {}) if rest else size

    def with_resolved(self, facts: Facts) -> Facts:
        """The facts with their bound unknowns replaced."""
        shape = None if facts.shape is None else tuple(self.resolve(size) for size in facts.shape)
        expr, elements = facts.expr, facts.elements
        if expr is not None and self._bound:
            expr = substitute(expr, self._bound, dict(enumerate(shape or ())))
        if elements is not None and any(isinstance(item, Index) for item in elements.reshape(-1)):
            old, elements = elements, np.empty(elements.shape, dtype=object)
            for index in np.ndindex(*old.shape):
                item = old[index]
                elements[index] = Index(self.resolve(item.poly), item.dtype) if isinstance(item, Index) else item
        return Facts(shape, facts.dtype, expr, elements, facts.constant)

    def unify(self, first: Poly, second: Poly, where: str) -> None:
        """Notes that two sizes are the same. Raises RewriteError where they cannot be."""
        first, second = self.resolve(first), self.resolve(second)
        if first == second:
            return
        if self.value(first) == self.value(second):
            for this, other in ((first, second), (second, first)):
                atom = next(iter(this.atoms()), None)
                if atom is not None and is_unknown(atom) and this == Poly.atom(atom):
                    self._bound[atom] = other
                    return
        raise ambiguous(self.sizes, f"{where} needs {first} and {second} to be the same size, which they are not for "
                        "every batch")  # fmt: skip

    def grid(self, index: Poly, shape: Shape) -> np.ndarray:
        """The values that an index has for every element of a tensor, at the sizes of the file."""
        sizes = [self.value(size) for size in shape]
        total = np.zeros(sizes, np.int64)
        for monomial, factor in index.terms:
            product = np.full(sizes, factor, np.int64)
            for atom in monomial:
                product = product * self._along(atom, shape, sizes)
            total = total + product
        return total

    def _along(self, atom: Atom, shape: Shape, sizes: Sequence[int]) -> np.ndarray | int:
        if isinstance(atom, Axis):
            return np.arange(sizes[atom.number]).reshape([-1 if i == atom.number else 1 for i in range(len(sizes))])
        if isinstance(atom, Division):
            pair = np.divmod(self.grid(atom.numerator, shape), self.grid(atom.denominator, shape))
            return np.asarray(pair[0] if atom.kind == "div" else pair[1])
        return self._values[atom]


def is_unknown(atom: Atom) -> bool:
    """Whether the atom is an unknown, not a size or an index."""
    return isinstance(atom, str) and atom.startswith("?")


def ambiguous(sizes: FixedSizes, reason: str) -> RewriteError:
    """The error for a file whose fixed sizes cannot be made dynamic."""
    return RewriteError(
        f"the inputs have the fixed size {sizes}, and what it means for other sizes is not certain: {reason}; "
        f"{EXPORT_AGAIN}"
    )
