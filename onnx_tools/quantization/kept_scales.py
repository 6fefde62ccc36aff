# SPDX-License-Identifier: Apache-2.0
"""Finds the GEMMs of a file in the graph that was made of it, so that they keep the file's scales and numbers.

Passes join GEMMs, change the order of their columns and round their weights. So a column is found by its direction, of
which a few sums with random signs and sizes are enough, and then compared number by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..analysis import padfree_inputs
from ..errors import RewriteError
from ..files import Floats
from ..importing.quantized import StoredGemm
from ..passes.norms.folded_weights import values_of
from .e4m3 import LEAST_SCALE, MOST_SCALE
from .layers import Layer, Layers
from .scales import TensorScale
from .weights import QuantizedWeight, QuantizedWeights

_SUMS = 16
_NEAR = 0.1
"""The largest distance of the sums of a column and of the same one rounded to bf16; others are several away."""
_ROUNDING = 2.0**-7
"""The most by which rounding to bf16 changes a number, relative to the largest of its column."""
_ROWS_AT_ONCE = 1024


def keep_scales(
    layers: Layers, gemms: Sequence[StoredGemm], weights: QuantizedWeights
) -> tuple[Layers, dict[str, TensorScale]]:
    """The layers that a file has scales for, and these scales by the tensors they are of.

    Args:
        layers: those that were asked for.
        gemms: what the file has.
        weights: gets the file's numbers of their weights.

    Raises RewriteError where no layer is left.
    """
    reasons, chosen_layers, scales = dict(layers.kept_layers), list[Layer](), dict[str, TensorScale]()
    all_candidates = [_Candidate(gemm, _sums(gemm.weight())) for gemm in gemms]
    for layer in layers.chosen_layers:
        weight = padfree_inputs(layer.node)["weight"]
        try:
            gemm, quantized = _find(values_of(weight), all_candidates)
            scale = scales.setdefault(layer.x, _scale_of(gemm, layer.x))
            if not _alike(scale, _scale_of(gemm, layer.x)):
                raise _NotKeptError(f"the file rounds '{layer.x}' by different scales")
        except _NotKeptError as error:
            reasons[layer.name] = str(error)
            continue
        weights.hold(weight, scale, quantized)
        chosen_layers.append(layer)
    if not chosen_layers:
        name = layers.chosen_layers[0].name
        raise RewriteError(
            f"no GEMM can keep its scales: '{name}': {reasons[name]}; leave out --keep-scales and pass --calibrate"
        )
    return Layers(tuple(chosen_layers), reasons), scales


class _NotKeptError(Exception):
    """Why a GEMM stays in half precision."""


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A GEMM of the file, and the sums of the columns of its weight [N, _SUMS]."""

    gemm: StoredGemm
    sums: Floats


def _sums(weight: Floats) -> Floats:
    """Sums of each column of a weight [K,N] divided by its length, which show its direction."""
    directions = np.random.default_rng(0).standard_normal((_SUMS, len(weight))).astype(np.float32)
    lengths = np.linalg.norm(weight, axis=0)
    sums: Floats = (directions @ weight / np.where(lengths > 0, lengths, 1)).T
    return sums


def _find(weight: Floats, all_candidates: Sequence[_Candidate]) -> tuple[StoredGemm, QuantizedWeight]:
    """A GEMM of the file that has the scale of what a weight [K,N] multiplies, and the weight as the file stores it."""
    inputs, features = weight.shape
    sums, candidates = _sums(weight), [item for item in all_candidates if item.gemm.rows.shape[1] == inputs]
    rows, scales = np.zeros((features, inputs), np.int8), np.ones(features, np.float32)
    open_columns, first = np.abs(weight).max(axis=0) > 0, None
    while open_columns.any():
        at = int(open_columns.argmax())
        fitting = [item for item in candidates if _distances(sums[at : at + 1], item.sums).min() < _NEAR]
        if not fitting:
            raise _NotKeptError("the file does not round both of its factors to int8")
        for item in fitting:
            first = first or item.gemm
            if item.gemm.scale != first.scale or not _same(item.gemm.factors, first.factors):
                raise _NotKeptError(
                    f"what it multiplies has the scale {first.scale:g} in '{first.name}' of the file, and "
                    f"{item.gemm.scale:g} in '{item.gemm.name}'"
                )
        columns_left, nearest = np.flatnonzero(open_columns), _nearest(sums[open_columns], fitting[0].sums)
        columns_left, nearest = columns_left[nearest >= 0], nearest[nearest >= 0]
        rows[columns_left], scales[columns_left] = fitting[0].gemm.rows[nearest], fitting[0].gemm.scales[nearest]
        open_columns[columns_left] = open_columns[at] = False
    if first is None:
        raise _NotKeptError("its weight is zero")
    expected = (rows * scales[:, np.newaxis]).T
    if first.factors is not None:
        expected /= first.factors[:, np.newaxis]
    if (np.abs(weight - expected) > _ROUNDING * np.abs(weight).max(axis=0)).any():
        raise _NotKeptError("its weight is another multiple of the file's")
    return first, QuantizedWeight(rows, scales)


def _distances(a: Floats, b: Floats) -> Floats:
    """The distances of rows [M, _SUMS] and [N, _SUMS]: [M,N]."""
    squares = (a * a).sum(axis=1)[:, np.newaxis] + (b * b).sum(axis=1) - 2 * (a @ b.T)
    distances: Floats = np.sqrt(np.maximum(squares, 0))
    return distances


def _nearest(a: Floats, b: Floats) -> npt.NDArray[np.int64]:
    """For each row of a the index of the nearest row of b; -1 if none is near."""
    result = np.full(len(a), -1)
    for start in range(0, len(a), _ROWS_AT_ONCE):
        distances = _distances(a[start : start + _ROWS_AT_ONCE], b)
        nearest = distances.argmin(axis=1)
        result[start : start + _ROWS_AT_ONCE] = np.where(distances.min(axis=1) < _NEAR, nearest, -1)
    return result


def _scale_of(gemm: StoredGemm, x: str) -> TensorScale:
    """A file's scale as QuantizeLinear takes it: a number of fp16."""
    if not LEAST_SCALE <= gemm.scale <= MOST_SCALE:
        raise _NotKeptError(f"the scale of '{x}' is {gemm.scale:g}, allowed: {LEAST_SCALE:g} to {MOST_SCALE:g}")
    return TensorScale(float(np.float16(gemm.scale)), gemm.factors, "" if gemm.factors is None else x)


def _alike(a: TensorScale, b: TensorScale) -> bool:
    return a.value == b.value and _same(a.factors, b.factors)


def _same(a: Floats | None, b: Floats | None) -> bool:
    return a is b if a is None or b is None else bool(np.allclose(a, b, rtol=1e-5, atol=0))
