# SPDX-License-Identifier: Apache-2.0
"""Cost tables: how long a run of so many sequences of such a length takes, measured on a grid."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.fields import decode
from padfree.contract.names import INTERFACES
from padfree.runtime.errors import SessionError

FloatArray = npt.NDArray[np.float64]

FORMAT = 1
KIND = "padfree cost table"
NOISE = 0.2
"""If a cell has to move by a larger fraction to make the table monotone, a warning is logged."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CostTable:
    """What a run costs, measured with sequences of equal length.

    On a padded model a run of unequal lengths costs as much as the same number of sequences of the longest length. On
    a packed model the time follows from the tokens T = sum(L) (GEMMs, norms) and from Q = sum(L^2) (attention). The run
    of T^2 / Q sequences of length Q / T has the same T and Q, so the table's cost of that run is taken.

    Physics allows no run that is faster for being larger: where noise says so, a cell becomes the mean of the largest
    smaller and the smallest larger run. Between cells cost is bilinear, below the shortest length it is that of the
    shortest, and beyond the table it grows in proportion.

    Attributes:
        interface: "packed" or "padded".
        lengths: grid of lengths, in tokens, growing; two or more.
        batches: grid of sequences per run, growing from 1; two or more.
        cost_ms: a row per length with a cell per batch size; None where a run is beyond the model's limits. Every row
            begins with at least one measured cell.
        environment: what was measured, where and with which versions.
    """

    interface: str
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    cost_ms: tuple[tuple[float | None, ...], ...]
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.interface not in INTERFACES:
            raise SessionError(f"interface is {self.interface!r}, allowed: {', '.join(INTERFACES)}; correct it")
        check_grid(self.lengths, self.batches)
        if [len(row) for row in self.cost_ms] != [len(self.batches)] * len(self.lengths):
            raise SessionError(
                f"cost_ms has rows of {[len(row) for row in self.cost_ms]} cells, allowed: {len(self.lengths)} rows "
                f"(one per length) of {len(self.batches)} (one per batch size); measure again"
            )
        for length, row in zip(self.lengths, self.cost_ms, strict=True):
            _check_row(length, row)

    @cached_property
    def _grid(self) -> FloatArray:
        """Seconds, complete and monotone."""
        full = np.empty((len(self.lengths), len(self.batches)))
        for at, row in enumerate(self.cost_ms):
            known_costs = [cost for cost in row if cost is not None]
            # Cells beyond the model's limits, which only interpolation reads, grow in proportion.
            full[at] = known_costs + [
                known_costs[-1] * batch / self.batches[len(known_costs) - 1]
                for batch in self.batches[len(known_costs) :]
            ]
        above = np.maximum.accumulate(np.maximum.accumulate(full, axis=0), axis=1)
        below = np.minimum.accumulate(np.minimum.accumulate(full[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
        grid = (above + below) / 2
        change = float(np.max(np.abs(grid - full) / full))
        if change > NOISE:
            _log.warning("cost table: larger runs measured faster, cells moved by %.0f %%; repeat more", 100 * change)
        return np.asarray(grid / 1e3)

    def seconds(self, length: npt.ArrayLike, batch: npt.ArrayLike) -> FloatArray:
        """The cost of `batch` sequences of `length` tokens, in seconds; arrays broadcast, fractions are allowed."""
        grid = self._grid
        rows, row_fraction, row_scale = _locate(np.asarray(length, dtype=np.float64), self.lengths)
        columns, column_fraction, column_scale = _locate(np.asarray(batch, dtype=np.float64), self.batches)
        low = grid[rows, columns] * (1 - column_fraction) + grid[rows, columns + 1] * column_fraction
        high = grid[rows + 1, columns] * (1 - column_fraction) + grid[rows + 1, columns + 1] * column_fraction
        return np.asarray((low * (1 - row_fraction) + high * row_fraction) * row_scale * column_scale)

    def mixed_seconds(self, sequences: npt.ArrayLike, tokens: npt.ArrayLike, squares: npt.ArrayLike) -> FloatArray:
        """The cost of packed runs with these numbers of sequences, sums of lengths and sums of squared lengths."""
        T, Q = np.asarray(tokens, dtype=np.float64), np.asarray(squares, dtype=np.float64)
        empty = T == 0
        length = Q / np.where(empty, 1, T)
        batch = np.where(empty, sequences, T * T / np.where(empty, 1, Q))
        return self.seconds(length, batch)

    def run_seconds(self, lengths: npt.ArrayLike) -> float:
        """The cost of one run of sequences of these lengths, in seconds; 0 for none."""
        sizes = np.asarray(lengths, dtype=np.int64)
        if not sizes.size:
            return 0.0
        if self.interface == "padded":
            return float(self.seconds(sizes.max(), sizes.size))
        return float(self.mixed_seconds(sizes.size, sizes.sum(), np.square(sizes).sum()))

    def alone_seconds(self, length: int) -> float:
        """The cost of a run of one sequence, in seconds; as run_seconds, and fast."""
        return self._alone[length] if length < len(self._alone) else self.run_seconds([length])

    @cached_property
    def _alone(self) -> list[float]:
        return [float(cost) for cost in self.seconds(np.arange(self.lengths[-1] + 1), 1)]

    def to_json(self) -> str:
        """The table as read_costs reads it, as it was measured."""
        columns = {name: getattr(self, name) for name in ("interface", "lengths", "batches", "cost_ms")}
        return json.dumps({"kind": KIND, "format": FORMAT, **columns, "environment": dict(self.environment)}) + "\n"


def read_costs(path: str | Path) -> CostTable:
    """Reads a table that `padfree costs` wrote.

    Raises:
        SessionError: the file cannot be read, or is not a table; the message says which part is wrong.
    """
    try:
        raw = decode(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SessionError(f"{path}: no such file; measure a cost table: padfree costs MODEL -o {path}") from error
    except (OSError, ValueError) as error:
        raise SessionError(
            f"{path}: no cost table ({error}); give one, or measure it: padfree costs MODEL -o costs.json"
        ) from error
    if not isinstance(raw, dict) or (raw.get("kind"), raw.get("format")) != (KIND, FORMAT):
        raise SessionError(
            f"{path}: not a {KIND!r} of format {FORMAT}; measure one with this version: padfree costs MODEL -o {path}"
        )
    try:
        return CostTable(
            interface=str(raw["interface"]),
            lengths=tuple(raw["lengths"]),
            batches=tuple(raw["batches"]),
            cost_ms=tuple(tuple(row) for row in raw["cost_ms"]),
            environment=dict(raw["environment"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SessionError(f"{path}: damaged cost table ({reason}); measure it again") from error


def check_grid(lengths: Sequence[int], batches: Sequence[int]) -> None:
    """Raises SessionError where no cost table has such lengths and batches."""
    for name, axis in (("lengths", lengths), ("batches", batches)):
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in axis)
        if len(axis) < 2 or not whole or any(low >= high for low, high in pairwise(axis)):
            raise SessionError(
                f"{name} are {list(axis)}, allowed: two or more growing whole numbers; measure such ones"
            )
    if batches[0] != 1:
        raise SessionError(f"batches begin with {batches[0]}, allowed: 1, a single request; measure it too")


def _check_row(length: int, row: Sequence[float | None]) -> None:
    measured_costs = [cost for cost in row if cost is not None]
    if not measured_costs or row[: len(measured_costs)] != tuple(measured_costs):
        raise SessionError(
            f"cost_ms of length {length} is {list(row)}, allowed: numbers, then null for runs beyond the model's "
            "limits; measure again"
        )
    for cost in measured_costs:
        if not isinstance(cost, (int, float)) or isinstance(cost, bool) or not 0 < cost < math.inf:
            raise SessionError(f"cost_ms of length {length} has {cost!r}, allowed: numbers above 0; measure again")


def _locate(values: FloatArray, axis: tuple[int, ...]) -> tuple[npt.NDArray[np.intp], FloatArray, FloatArray]:
    """Cell, position in the cell 0..1, and the factor for values beyond the axis."""
    points = np.asarray(axis, dtype=np.float64)
    inside = np.clip(values, points[0], points[-1])
    cell = np.minimum(np.searchsorted(points, inside, side="right") - 1, len(axis) - 2)
    fraction = (inside - points[cell]) / (points[cell + 1] - points[cell])
    return cell, fraction, np.maximum(values / points[-1], 1.0)
