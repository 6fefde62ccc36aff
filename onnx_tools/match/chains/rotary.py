# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings, however they are written: heads whose pairs of elements are rotated by position * frequency.

Chains of operators are not compared with known ones. The nodes between heads and rotated heads are linear in the heads
(sums, products with values made of positions, movements), so that what they do to each single element describes them
fully. The model's own nodes are run to find that out, and the results are compared with cosines and sines of
position * frequency.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import (
    LONGEST_TRIAL,
    REORDERINGS,
    STANDARD_DOMAINS,
    Computation,
    Movement,
    NotComputedError,
    Positional,
    is_standard,
    moving,
    present,
    producer,
    token_axis,
)
from .. import NoMatch
from ..values import table_rows

Float64s = npt.NDArray[np.float64]

_MOVEMENTS = REORDERINGS | moving(Movement.PART, Movement.JOIN)
_MOST_NODES = 64  # between heads and rotated heads
_FEW = 6  # positions that show which elements are pairs
_FAR = 256  # the last positions, at which frequencies differ most
# The error of a cosine and the relative error of an angle, both rounded to float32, and the error of a cosine from a
# table that was stored in 16 bits.
_ROUNDING, _ANGLE_ROUNDING, _HALF_ROUNDING = 2e-6, 2.0**-22, 2.0**-10


@dataclass(frozen=True)
class Rotation:
    """Element `first[k]` of a head and element `second[k]` are rotated by position * frequencies[k], times `factor`.

    Elements that stay as they are belong to pairs of frequency 0. `positions` is the input [B,S] that holds positions;
    None: they are counted.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    frequencies: tuple[float, ...]  # float32 numbers, one per pair
    factor: float = 1.0
    positions: str | None = None

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """Which elements are pairs."""
        return frozenset(zip(self.first, self.second, strict=True))

    @property
    def pairing(self) -> str | None:
        """PadfreeRotary's name for the pairing; None where the columns have to be put in order first."""
        half = len(self.first)
        if self.first == tuple(range(half)) and self.second == tuple(range(half, 2 * half)):
            return "half"
        if self.first == tuple(range(0, 2 * half, 2)) and self.second == tuple(range(1, 2 * half, 2)):
            return "interleaved"
        return None


class Rotations:
    """Finds rotations in one graph; those that are computed alike are examined only once."""

    def __init__(self, positional: Positional) -> None:
        self._positional = positional
        self._order = {id(node): index for index, node in enumerate(positional.graph.nodes)}
        self._rotations: dict[str, Rotation | None] = {}
        self._inputs = [item for item in positional.graph.inputs if np.dtype(item.dtype).kind in "iu"]
        self._of_input: dict[str, frozenset[str]] = {}

    def of(self, tensor: gs.Tensor) -> tuple[gs.Tensor, Rotation] | None:
        """The heads that a tensor [B,H,S,D] or [B,S,H,D] is rotated from, and how; None where it is something else."""
        for positions in (None, *self._inputs):
            match = self._by(tensor, positions)
            if match is not None:
                return match
        return None

    def _by(self, tensor: gs.Tensor, positions: gs.Tensor | None) -> tuple[gs.Tensor, Rotation] | None:
        """The heads and their rotation by the positions that an input holds, or by counted ones without an input."""
        analysis, name = self._positional.analysis, None if positions is None else str(positions.name)
        made_of_name = frozenset[str]() if name is None else self._made_of(name)
        source = None if tensor.name in made_of_name else self._source(tensor, made_of_name)
        if source is None or analysis[source].shape != analysis[tensor].shape:
            return None
        computation = self._positional.computation(tensor, source, tokens=() if name is None else (name,))
        if computation is None or set(computation.tokens) != ({name} - {None}):
            return None
        key = f"{computation.key} {name}"
        if key not in self._rotations:
            shape = [size.constant() or 0 for size in analysis[source].shape or ()]
            sequence = 1 if token_axis(analysis[source].shape) == 1 else 2
            heads = _RotatedHeads(computation, source.name, shape, sequence, name)
            rows = None if positions is None else table_rows(positions)
            try:
                self._rotations[key] = _rotation(heads, min(self._positional.trial_length, rows or LONGEST_TRIAL))
            except (NoMatch, NotComputedError):
                self._rotations[key] = None
        match = self._rotations[key]
        return None if match is None else (source, match)

    def _made_of(self, name: str) -> frozenset[str]:
        """The names of the tensors that are computed from an input and from positions alone."""
        if name not in self._of_input:
            names = {name}
            for node in self._positional.graph.nodes:
                inputs = present(node.inputs)
                own = any(item.name in names for item in inputs) and node.domain in STANDARD_DOMAINS
                if own and all(item.name in names or item in self._positional for item in inputs):
                    names.update(tensor.name for tensor in node.outputs)
            self._of_input[name] = frozenset(names)
        return self._of_input[name]

    def _source(self, tensor: gs.Tensor, computed_from: frozenset[str]) -> gs.Tensor | None:
        """The nearest tensor of heads that a tensor is linear in, apart from positions and `computed_from`; or None."""
        waiting, progress = {tensor.name: tensor}, False
        for _ in range(_MOST_NODES):
            current = max(waiting.values(), key=lambda item: self._order.get(id(producer(item)), -1))
            node = producer(current)
            operands = None if node is None else self._linear_operands(node, computed_from)
            if node is None or operands is None:
                return None
            for output in node.outputs:
                waiting.pop(output.name, None)
            waiting |= {item.name: item for item in operands}
            progress = progress or not is_standard(node, *_MOVEMENTS)
            if progress and len(waiting) == 1:
                last = next(iter(waiting.values()))
                if self._is_heads(last):
                    return last
        return None

    def _is_heads(self, tensor: gs.Tensor) -> bool:
        shape = self._positional.analysis[tensor].shape
        return shape is not None and len(shape) == 4 and token_axis(shape) in (1, 2)

    def _linear_operands(self, node: gs.Node, computed_from: frozenset[str]) -> list[gs.Tensor] | None:
        """The operands that a node's result is linear in; None where it is not."""
        inputs = present(node.inputs)
        others = [item for item in inputs if item not in self._positional and item.name not in computed_from]
        if is_standard(node, "Add", "Sub", "Concat"):
            return others if len(others) == len(inputs) else None
        if is_standard(node, "Mul"):
            return others if len(others) == 1 and len(inputs) == 2 else None
        if is_standard(node, "Div", "Neg", *_MOVEMENTS):
            return others if len(others) == 1 and others[0] is inputs[0] else None
        return None


@dataclass(frozen=True)
class _RotatedHeads:
    """What a computation makes of heads; `shape` has 0 for B and S. `positions` is the input that holds positions."""

    computation: Computation
    source: str
    shape: list[int]
    sequence: int
    positions: str | None = None

    @property
    def heads(self) -> int:
        return self.shape[3 - self.sequence]

    @property
    def size(self) -> int:
        return self.shape[3]

    def __call__(self, x: Float64s, positions: npt.NDArray[np.int64] | None = None) -> Float64s:
        """The rotated heads of x [B,S,H,D]; of x [B,S,1,D], which stands for every head, only the first.

        An input of positions holds `positions` [B,S], or 0, 1, 2, ... where they are not given.
        """
        wide = np.broadcast_to(x, (*x.shape[:2], self.heads, self.size))
        source_values = wide if self.sequence == 1 else wide.transpose(0, 2, 1, 3)
        values = {self.source: source_values}
        if self.positions is not None:
            indices = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
            values[self.positions] = indices if positions is None else positions
        result = self.computation.run(x.shape[0], x.shape[1], values)
        if result.shape != source_values.shape:
            raise NoMatch("rotated heads have another shape")
        heads = result if self.sequence == 1 else result.transpose(0, 2, 1, 3)
        return np.asarray(heads[:, :, : x.shape[2]], np.float64)


def _rotation(rotated_heads: _RotatedHeads, length: int) -> Rotation:
    """What the computation does to positions 0 to length - 1. Raises NoMatch where that is no rotation."""
    size, few = rotated_heads.size, min(_FEW, length)
    units = np.broadcast_to(np.eye(size)[:, None, None, :], (size, few, 1, size))
    matrix = rotated_heads(units)[:, :, 0].transpose(1, 2, 0)  # [positions, to, from]
    first, second, alone = _pairs(matrix)
    ones = np.zeros(size)
    ones[[*first, *alone]] = 1.0
    angles = rotated_heads(np.broadcast_to(ones, (1, length, 1, size)))[0, :, 0]
    cosine, sine = angles[:, first], angles[:, second]
    both = np.hypot(cosine, sine)
    factor = float(np.median(both)) if first else 1.0
    rounding = _ROUNDING if not _is_half(angles) else _HALF_ROUNDING
    if factor <= 0 or np.abs(both - factor).max(initial=0) > 4 * rounding * factor or len(alone) % 2:
        raise NoMatch("pairs are not rotated by themselves")
    if alone and np.abs(angles[:, alone] - factor).max() > 4 * rounding * factor:
        raise NoMatch("elements without a partner are scaled otherwise")
    frequencies = [_frequency(cosine[:, k] / factor, sine[:, k] / factor) for k in range(len(first))]
    half = len(alone) // 2
    factor = 1.0 if abs(factor - 1.0) < 4 * rounding else factor
    pairs = (*first, *alone[:half]), (*second, *alone[half:])
    result = Rotation(*pairs, (*frequencies, *[0.0] * half), factor, rotated_heads.positions)
    rng = np.random.default_rng(0)
    for shape in ((2, few, rotated_heads.heads, size), (1, length, 1, size)):
        x = rng.uniform(-1, 1, shape).astype(np.float32).astype(np.float64)
        _check(rotated_heads, result, x, rounding, np.broadcast_to(np.arange(shape[1]), shape[:2]))
        if rotated_heads.positions is not None:  # any slot may hold any position
            _check(rotated_heads, result, x, rounding, rng.integers(0, length, shape[:2]))
    return result


def _pairs(matrix: Float64s) -> tuple[list[int], list[int], list[int]]:
    """The first and the second elements of pairs, and the elements without a partner. Raises NoMatch.

    `matrix` is [positions, to, from]: how much of every element goes to which one.
    """
    reads = np.any(matrix != 0, axis=0)
    np.fill_diagonal(reads, False)
    first, second, alone = list[int](), list[int](), list[int]()
    for element in range(matrix.shape[1]):
        partners = np.flatnonzero(reads[element] | reads[:, element])
        if len(partners) > 1:
            raise NoMatch(f"element {element} of a head is made of {len(partners) + 1} elements")
        if not len(partners):
            alone.append(element)
        elif partners[0] > element:
            first.append(element)
            second.append(int(partners[0]))
    return first, second, alone


def _is_half(values: Float64s) -> bool:
    """Whether the values were stored in 16 bits."""
    return bool(np.array_equal(values, values.astype(np.float16)))


def _frequency(cosine: Float64s, sine: Float64s) -> float:
    """The float32 frequency by which the angle grows from position to position. Raises NoMatch."""
    length = len(cosine)
    if length < 2:
        raise NoMatch("a single position shows no frequency")
    guess, step = float(np.arctan2(sine[1], cosine[1])), 1
    while 2 * step < length:  # twice as far, half the error
        step *= 2
        off = np.arctan2(sine[step], cosine[step]) - guess * step
        guess += float((off + np.pi) % (2 * np.pi) - np.pi) / step
    near = np.float32(guess)
    candidates = [near]
    for direction in (-np.inf, np.inf):
        value = near
        for _ in range(3):
            value = np.nextafter(value, np.float32(direction))
            candidates.append(value)
    return float(_closest(candidates, cosine, sine))


def _closest(candidates: list[np.float32], cosine: Float64s, sine: Float64s) -> np.float32:
    """The candidate whose largest error is smallest; the last positions rule most out before all are computed."""
    positions = np.arange(len(cosine), dtype=np.float32)

    def worst(value: np.float32, start: int) -> float:
        return float(_error(positions[start:] * value, cosine[start:], sine[start:]).max())

    at_least = [worst(value, max(0, len(positions) - _FAR)) for value in candidates]
    best, best_index = np.inf, 0
    for index in np.argsort(at_least, kind="stable"):
        if at_least[index] > best:
            break
        error = worst(candidates[index], 0)
        if (error, index) < (best, best_index):
            best, best_index = error, index
    return candidates[best_index]


def _error(angle: npt.NDArray[np.float32], cosine: Float64s, sine: Float64s) -> Float64s:
    exact = angle.astype(np.float64)
    return np.maximum(np.abs(np.cos(exact) - cosine), np.abs(np.sin(exact) - sine))


def _check(
    rotated_heads: _RotatedHeads, rotation: Rotation, x: Float64s, rounding: float, indices: npt.NDArray[np.int64]
) -> None:
    """Raises NoMatch if the nodes rotate x [B,S,H,D] at positions [B,S] otherwise than `rotation` does.

    `rounding` is the error of a single cosine.
    """
    angle = (indices.astype(np.float32)[..., None] * np.asarray(rotation.frequencies, np.float32)).astype(np.float64)
    cosine, sine = (function(angle)[:, :, None] * rotation.factor for function in (np.cos, np.sin))
    one, two = x[..., list(rotation.first)], x[..., list(rotation.second)]
    expected = np.empty_like(x)
    expected[..., list(rotation.first)] = one * cosine - two * sine
    expected[..., list(rotation.second)] = two * cosine + one * sine
    tolerance = np.empty((*x.shape[:2], x.shape[3]))
    tolerance[..., list(rotation.first)] = tolerance[..., list(rotation.second)] = 4 * (
        rounding + _ANGLE_ROUNDING * np.abs(angle)
    )
    if not np.all(np.abs(rotated_heads(x, indices) - expected) <= tolerance[:, :, None] * rotation.factor):
        raise NoMatch("elements are not rotated by position * frequency")
