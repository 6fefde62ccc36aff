# SPDX-License-Identifier: Apache-2.0
"""Tells which sizes the numbers in a Reshape's target stand for: elements keep their order, and so do the axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ...analysis.symbolic import Poly, Shape

Value = Callable[[Poly], int]


def align(shape: Shape, target: Sequence[int], value: Value) -> Shape | None:
    """The sizes that the numbers in `target` stand for; None where a number would cut an axis, or is ambiguous.

    Batch and sequence stay whole and in order: [B,S,16] to [3,7,2,8] is [B,S,2,8], even if B or S is 2 or 8. `value`
    gives the number that a size is in the file; a batch of 1 goes to the first axis of 1.
    """
    if math.prod(target) != math.prod(value(size) for size in shape):
        return None
    candidates: list[Shape] = []
    for order in itertools.product(*(_orders(size) for size in shape)):
        result = _spread([factor for part in order for factor in part], target, value)
        if result is not None and result not in candidates:
            candidates.append(result)
    return candidates[0] if len(candidates) == 1 else None


def _orders(size: Poly) -> Iterator[tuple[Poly, ...]]:
    """The factors of a product in the orders that they may have been merged in; the batch comes first."""
    if len(size.terms) != 1 or size.constant() is not None:
        yield () if size == Poly.of(1) else (size,)
        return
    atoms, factor = size.terms[0]
    first = tuple(Poly.atom(atom) for atom in atoms if atom == "B")
    rest = [Poly.atom(atom) for atom in atoms if atom != "B"] + ([Poly.of(factor)] if factor != 1 else [])
    for order in itertools.permutations(rest):
        yield (*first, *order)


def _spread(factors: list[Poly], target: Sequence[int], value: Value) -> Shape | None:
    result: list[Poly] = []
    for target_size in target:
        size, remaining, has_factor = Poly.of(1), target_size, False
        while factors and (remaining > 1 or (target_size == 1 and not has_factor and value(factors[0]) == 1)):
            factor = factors.pop(0)
            number, plain, has_factor = value(factor), factor.constant(), True
            if remaining % number == 0:
                size, remaining = size * factor, remaining // number
            elif plain is not None and plain % remaining == 0:
                factors.insert(0, Poly.of(plain // remaining))
                size, remaining = size * remaining, 1
            else:
                return None
        if remaining != 1:
            return None
        result.append(size)
    for factor in factors:
        if value(factor) != 1 or not result:
            return None
        result[-1] = result[-1] * factor
    return tuple(result)
