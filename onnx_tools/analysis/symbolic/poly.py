# SPDX-License-Identifier: Apache-2.0
"""Integer polynomials in dimension names (B, S, ...) and axis indices, for sizes and index arithmetic of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """The index along one axis of a tensor: 0 up to the axis's size less one."""

    number: int

    def __str__(self) -> str:
        return f"i{self.number}"


@dataclass(frozen=True)
class Division:
    """The quotient or the remainder of two polynomials, where nothing simpler is known for it."""

    kind: str  # "div" or "mod"
    numerator: Poly
    denominator: Poly

    def __str__(self) -> str:
        return f"({self.numerator} {self.kind} {self.denominator})"


Atom = str | Axis | Division
Monomial = tuple[Atom, ...]
_ONE = (((), 1),)  # the terms of the number 1
_CACHE_SIZE = 1024  # polynomials that are made again and again


def _monomial(atoms: Monomial) -> Monomial:
    return atoms if len(atoms) < 2 else tuple(sorted(atoms, key=str))


@dataclass(frozen=True)
class Poly:
    """A sum of integer multiples of products of atoms. No atom is ever negative."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Cached, because shapes are looked up again and again."""
        return hash(self.terms)

    @staticmethod
    def of(value: int | Poly) -> Poly:
        """An integer as a polynomial; a polynomial stays as it is."""
        return value if isinstance(value, Poly) else _number(int(value))

    @staticmethod
    @functools.lru_cache(_CACHE_SIZE)
    def atom(atom: Atom) -> Poly:
        """One atom as a polynomial."""
        return Poly((((atom,), 1),))

    @staticmethod
    def _from(terms: Mapping[Monomial, int]) -> Poly:
        remaining = [(monomial, factor) for monomial, factor in terms.items() if factor]
        return Poly(tuple(remaining if len(remaining) < 2 else sorted(remaining, key=str)))

    def __add__(self, other: int | Poly) -> Poly:
        other_poly = Poly.of(other)
        if not other_poly.terms or not self.terms:
            return self if self.terms else other_poly
        terms = dict(self.terms)
        for monomial, factor in other_poly.terms:
            terms[monomial] = terms.get(monomial, 0) + factor
        return Poly._from(terms)

    def __neg__(self) -> Poly:
        return Poly(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: int | Poly) -> Poly:
        return self + -Poly.of(other)

    def __mul__(self, other: int | Poly) -> Poly:
        times = Poly.of(other)
        if times.terms == _ONE:
            return self
        if self.terms == _ONE:
            return times
        if len(self.terms) == 1 and len(times.terms) == 1:
            (one, count), (other_one, other_count) = self.terms[0], times.terms[0]
            return Poly(((_monomial(one + other_one), count * other_count),))
        terms: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in times.terms:
                key = _monomial(m + n)
                terms[key] = terms.get(key, 0) + c * d
        return Poly._from(terms)

    def constant(self) -> int | None:
        """The integer that it equals, or None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def atoms(self) -> set[Atom]:
        """Every atom, those inside divisions included."""
        names: set[Atom] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                names.add(atom)
                if isinstance(atom, Division):
                    names |= atom.numerator.atoms() | atom.denominator.atoms()
        return names

    def axes(self) -> set[int]:
        """The axes that it depends on."""
        return {atom.number for atom in self.atoms() if isinstance(atom, Axis)}

    def is_non_negative(self) -> bool:
        """Whether it is provably >= 0 (False: not known)."""
        return all(factor >= 0 for _, factor in self.terms)

    def is_positive(self) -> bool:
        """Whether it is provably > 0 (False: not known)."""
        return self.is_non_negative() and any(not monomial for monomial, _ in self.terms)

    def divided_exactly(self, other: Poly) -> Poly | None:
        """The quotient if `other` is one product that divides every term, else None. Sizes of 0 do not matter."""
        if len(other.terms) != 1:
            return None
        divisor, factor = other.terms[0]
        terms: dict[Monomial, int] = {}
        for monomial, count in self.terms:
            rest = list(monomial)
            for atom in divisor:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if count % factor:
                return None
            terms[tuple(rest)] = count // factor
        return Poly._from(terms)

    def substitute(self, values: Mapping[Atom, Poly], sizes: Mapping[int, Poly]) -> Poly:
        """Replaces atoms by polynomials; `sizes` are those of the axes in the result."""
        total = Poly()
        for monomial, factor in self.terms:
            product = Poly.of(factor)
            for atom in monomial:
                product = product * _substitute(atom, values, sizes)
            total = total + product
        return total

    def divmod(self, other: Poly, sizes: Mapping[int, Poly]) -> tuple[Poly, Poly]:
        """Quotient and remainder, simplified where the sizes of the axes allow it."""
        if other == Poly.of(1):
            return self, Poly()
        quotient, rest = Poly(), Poly()
        for term in self.terms:
            part = Poly((term,))
            exact = part.divided_exactly(other)
            if exact is None:
                rest = rest + part
            else:
                quotient = quotient + exact
        if _is_below(rest, other, sizes):
            return quotient, rest
        return (
            quotient + Poly.atom(Division("div", rest, other)),
            Poly.atom(Division("mod", rest, other)),
        )

    def evaluate(self, value: Callable[[str], int]) -> int:
        """Its value with dimension names replaced by their sizes; it must not depend on axes."""
        total = 0
        for monomial, factor in self.terms:
            for atom in monomial:
                if isinstance(atom, str):
                    factor *= value(atom)
                elif isinstance(atom, Division):
                    pair = divmod(atom.numerator.evaluate(value), atom.denominator.evaluate(value))
                    factor *= pair[0] if atom.kind == "div" else pair[1]
                else:
                    raise ValueError(f"{self} depends on the index {atom}")
            total += factor
        return total

    def __str__(self) -> str:
        def text(monomial: Monomial, factor: int) -> str:
            parts = [str(atom) for atom in monomial]
            return "*".join(parts if factor == 1 and parts else [str(factor), *parts])

        return " + ".join(text(m, c) for m, c in self.terms) or "0"


@functools.lru_cache(_CACHE_SIZE)
def _number(value: int) -> Poly:
    return Poly((((), value),)) if value else Poly()


def _is_below(value: Poly, limit: Poly, sizes: Mapping[int, Poly]) -> bool:
    """Whether 0 <= value < limit is certain."""
    if not value.terms:
        return True
    number, bound = value.constant(), limit.constant()
    if number is not None and bound is not None:
        return 0 <= number < bound
    # Mixed radix: the largest value of sum(stride * index) is sum(stride * (size - 1)).
    largest = Poly()
    for monomial, factor in value.terms:
        axes = [atom for atom in monomial if isinstance(atom, Axis)]
        if factor < 0 or len(axes) != 1 or axes[0].number not in sizes:
            return False
        rest = Poly(((tuple(atom for atom in monomial if atom != axes[0]), factor),))
        largest = largest + rest * (sizes[axes[0].number] - 1)
    return (limit - 1 - largest).is_non_negative()


def _substitute(atom: Atom, values: Mapping[Atom, Poly], sizes: Mapping[int, Poly]) -> Poly:
    if atom in values:
        return values[atom]
    if isinstance(atom, Division):
        quotient, rest = atom.numerator.substitute(values, sizes).divmod(atom.denominator, sizes)
        return quotient if atom.kind == "div" else rest
    return Poly.atom(atom)
