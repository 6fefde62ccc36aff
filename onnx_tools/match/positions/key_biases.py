# SPDX-License-Identifier: Apache-2.0
"""Biases by a key's position alone, as BLOOM and MPT write ALiBi: slope * position.

A number that all keys of a query share changes no weight, so that slope * key has the effect of slope * (key - query).
Only a line along the keys acts as a function of the distance in this way. Tokens may be counted from slots or from the
mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import B, Computation, NotComputedError, Positional, S, computation_of, is_standard, present
from ...analysis.symbolic import Poly, Shape
from .. import NoMatch
from ..values import Keeping

Float64s = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

_PAIRS = 1024  # the most tokens that are tried where a tensor on the way has a number for every query and key
_ONE = Poly.of(1)
_LINEAR = 1e-6  # the share of the largest number by which numbers may miss the line: roundoff of float32
_VALUES = MappingProxyType({"nonzero": (1, 0), "zero": (0, 1)})  # a mask's values where a slot is kept, and where not


@dataclass(frozen=True)
class KeySlopes:
    """What every further key adds to the scores of each head.

    `counts_tokens`: only kept keys are counted; otherwise all slots are, padding included.
    """

    slopes: Float64s  # [H or 1]
    counts_tokens: bool


def is_of_keys(positional: Positional, tensor: gs.Tensor) -> bool:
    """Whether a tensor [...,1,S] has a number for every key that is made of positions and of inputs alone."""
    shape = positional.analysis[tensor].shape
    if not shape or shape[-1] != S or any(size.constant() != 1 for size in shape[-2:-1]):
        return False
    if any(size.constant() is None and size.divided_exactly(B) is None for size in shape[:-2]):
        return False
    if tensor in positional:
        return True
    computation = computation_of(positional.graph, positional.analysis, tensor, tables=False)
    return computation is not None and bool(computation.tokens)


def is_of_queries(positional: Positional, tensor: gs.Tensor) -> bool:
    """Whether a tensor [...,1] of positions has one finite number for all keys of a query, which changes no weight."""
    shape = positional.analysis[tensor].shape
    if tensor not in positional or shape is None or (shape and shape[-1] != _ONE):
        return False
    if isinstance(tensor, gs.Constant):
        return bool(np.all(np.isfinite(tensor.values)))
    computation = positional.computation(tensor, is_fixed=True)
    longest = min(positional.trial_length, _PAIRS) if _makes_pairs(positional, tensor) else positional.trial_length
    try:
        runs = None if computation is None else [computation.run(2, length, {}) for length in (1, longest)]
    except NotComputedError:
        return False
    return runs is not None and all(np.all(np.isfinite(item)) for item in runs)


class KeyBiases:
    """Finds such biases in one graph; those that are computed alike are looked at once."""

    def __init__(self, positional: Positional) -> None:
        self._positional = positional
        self._slopes: dict[str, KeySlopes] = {}

    def slopes(self, tensor: gs.Tensor, heads: int, keeps: Keeping | None, *, by_head: bool) -> KeySlopes:
        """The slopes of a tensor that `is_of_keys`; `keeps` is the mask's rule. Raises NoMatch where it is no line.

        `by_head`: heads and sequences are [H*B,1,S] and not [B*H,1,S].
        """
        values = None if keeps is None else _VALUES.get(keeps.form)
        tokens = () if keeps is None or values is None else (keeps.source,)
        computation = self._positional.computation(tensor, is_fixed=True, tokens=tokens)
        if computation is None:
            raise NoMatch(f"'{tensor.name}' is added to the scores, and is made of more than positions and the mask")
        key = f"{computation.key} {heads} {keeps} {by_head}"
        if key not in self._slopes:
            line = _KeyLine(tensor, computation, self._ahead(tensor, heads), heads, by_head, values)
            self._slopes[key] = line.slopes_within(self._limit(tensor))
        return self._slopes[key]

    def _ahead(self, tensor: gs.Tensor, heads: int) -> Shape:
        """The sizes ahead of [...,1,S]: [B or 1, H or 1], or [B*H]. Raises NoMatch."""
        shape = self._positional.analysis[tensor].shape or ()
        if shape[:-2] == (B * heads,):
            return shape[:-2]
        ahead = (_ONE, _ONE, *shape[:-2])[-2:]
        if len(shape) > 4 or ahead[0] not in (_ONE, B) or ahead[1] not in (_ONE, Poly.of(heads)):
            raise NoMatch(f"'{tensor.name}' of shape [{', '.join(map(str, shape))}] is added to the scores")
        return ahead

    def _limit(self, tensor: gs.Tensor) -> int:
        """How many tokens are tried. Raises NoMatch where these are fewer than a sequence may have."""
        longest = self._positional.longest
        if not _makes_pairs(self._positional, tensor):
            return self._positional.trial_length
        if longest is None or longest > _PAIRS:
            limit = "any" if longest is None else str(longest)
            raise NoMatch(f"'{tensor.name}' is added to the scores of {limit} tokens; at most {_PAIRS} can be checked")
        return longest


def _makes_pairs(positional: Positional, tensor: gs.Tensor) -> bool:
    """Whether something that a tensor is made of has a number for every query and key, or is of unknown shape."""
    seen, waiting = {tensor.name}, [tensor]
    while waiting:
        current = waiting.pop()
        shape = positional.analysis[current].shape
        if shape is None or sum("S" in size.atoms() for size in shape) > 1:
            return True
        for node in [item for item in current.inputs if not is_standard(item, "Shape", "Size")]:
            waiting += [item for item in present(node.inputs) if item.name not in seen]
            seen.update(item.name for item in node.inputs)
    return False


class _KeyLine:
    """The numbers of a tensor for rows of slots, of which only the padding is given."""

    def __init__(
        self,
        tensor: gs.Tensor,
        computation: Computation,
        ahead: Shape,
        heads: int,
        by_head: bool,
        values: tuple[int, int] | None,
    ) -> None:
        self._name = tensor.name
        self._computation = computation
        self._ahead, self._heads, self._by_head = ahead, heads, by_head
        self._values = values

    def slopes_within(self, limit: int) -> KeySlopes:
        """The slopes of rows of up to `limit` tokens. Raises NoMatch."""
        whole = self._numbers(np.ones((1, limit), bool))[0]
        slopes = (whole[:, -1] - whole[:, 0]) / max(limit - 1, 1)
        counts_tokens = bool(self._computation.tokens)
        for length in _lengths(limit):
            rows = _rows(length) if self._computation.tokens else np.ones((2, length), bool)
            numbers = self._numbers(rows)
            for is_token, row_numbers in zip(
                rows, np.broadcast_to(numbers, (len(rows), *numbers.shape[1:])), strict=True
            ):
                slots = np.flatnonzero(is_token)
                if _are_together(slots) and not _is_line(row_numbers[:, slots], slopes, slots):
                    raise NoMatch(f"'{self._name}' is added to the scores and does not grow evenly along the keys")
                if not _is_near(row_numbers, slopes, slots):
                    raise NoMatch(f"'{self._name}' is added to the scores and has numbers of another size for padding")
                counts_tokens = counts_tokens and _is_line(row_numbers[:, slots], slopes, np.arange(len(slots)))
        return KeySlopes(slopes, counts_tokens)

    def _numbers(self, is_token: Truths) -> Float64s:
        """[B or 1,H or 1,S]: the tensor for a mask."""
        rows, length = is_token.shape
        values = np.where(is_token, *(self._values or (1, 0)))
        try:
            result = self._computation.run(rows, length, dict.fromkeys(self._computation.tokens, values))
        except NotComputedError:
            raise NoMatch(f"'{self._name}' is added to the scores and cannot be computed for {length} tokens") from None
        if not np.all(np.isfinite(result)):
            raise NoMatch(f"'{self._name}' is added to the scores and is not finite for every key")
        if len(self._ahead) == 1:
            wide = (self._heads, rows) if self._by_head else (rows, self._heads)
            apart = result.reshape(*wide, length)
            return (apart.swapaxes(0, 1) if self._by_head else apart).astype(np.float64)
        return result.reshape(*(rows if size == B else size.constant() or 1 for size in self._ahead), length).astype(
            np.float64
        )


def _lengths(limit: int) -> Iterator[int]:
    """Lengths that are tried: short ones, and those around powers of two."""
    powers = {(1 << power) + step for power in range(3, limit.bit_length() + 1) for step in (-1, 0, 1)}
    yield from sorted(length for length in {*range(1, 9), *powers, limit} if 0 < length <= limit)


def _rows(length: int) -> Truths:
    """Rows with tokens in all slots, in the first, in the last, in the middle, and here and there."""
    slots, part = np.arange(length), max(1, 2 * length // 3)
    holes = np.random.default_rng(length).random((2, length)) < 0.6
    return np.stack(
        [slots < length, slots < part, slots >= length - part, (slots >= length - part) & (slots < part), *holes]
    )


def _is_near(numbers: Float64s, slopes: Float64s, slots: npt.NDArray[np.int64]) -> bool:
    """Whether numbers [H or 1,S] are all within the range of the line, so that a mask hides those of masked slots."""
    if not len(slots):
        return True
    tolerance = np.abs(slopes) * numbers.shape[1] + _LINEAR * (1 + np.abs(numbers).max(axis=1))
    return bool(np.all(np.abs(numbers - numbers[:, slots[:1]]) <= tolerance[:, None]))


def _are_together(slots: npt.NDArray[np.int64]) -> bool:
    return not len(slots) or slots[-1] - slots[0] == len(slots) - 1


def _is_line(numbers: Float64s, slopes: Float64s, indices: npt.NDArray[np.int64]) -> bool:
    """Whether numbers [H or 1,N] grow by the slopes from position to position."""
    if not len(indices):
        return True
    line = slopes[:, None] * (indices - indices[0])
    tolerance = _LINEAR * (1 + np.abs(numbers).max(axis=1, keepdims=True))
    return bool(np.all(np.abs(numbers - numbers[:, :1] - line) <= tolerance))
