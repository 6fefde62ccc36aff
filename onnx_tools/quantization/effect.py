# SPDX-License-Identifier: Apache-2.0
"""Compares the outputs of a whole quantised model with those of the model it was made from, sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..files import Array, Model
from .calibration import Feeds, fetch


@dataclass(frozen=True)
class Effect:
    """For one output, the mean and the least cosine between a sequence's numbers before and after."""

    mean_cosine: float
    least_cosine: float
    sequences: int

    def to_dict(self) -> dict[str, Any]:
        """The effect as the metadata has it."""
        return asdict(self)


def outputs_of(
    model: Model, precision: str, metadata: Mapping[str, Any], batches: Sequence[Feeds]
) -> list[list[Array]]:
    """For each batch, a rewritten model's outputs that have an axis of tokens or sequences."""
    names = [item["name"] for item in _items_with_rows(metadata)]
    return [fetch(model, precision, names, feeds) for feeds in batches]


def _items_with_rows(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [item for item in metadata["outputs"] if item["layout"] in ("packed", "per_sequence", "padded")]


def measure_effect(
    before: Sequence[Sequence[Array]],
    after: Sequence[Sequence[Array]],
    metadata: Mapping[str, Any],
    batches: Sequence[Feeds],
) -> dict[str, Effect]:
    """The effect by output.

    Args:
        before: outputs of a model in half precision, as `outputs_of` returns them.
        after: those of the model that was made from it.
        metadata: the metadata of both.
        batches: inputs of both.
    """
    items = _items_with_rows(metadata)
    cosines: dict[str, list[float]] = {item["name"]: [] for item in items}
    for feeds, *pairs in zip(batches, before, after, strict=True):
        for item, a, b in zip(items, *pairs, strict=True):
            lengths = _lengths(metadata, feeds)
            parts = (_sequences(values, item["layout"], lengths) for values in (a, b))
            cosines[item["name"]] += [cosine(x, y) for x, y in zip(*parts, strict=True)]
    return {
        name: Effect(float(np.mean(values)), float(np.min(values)), len(values))
        for name, values in cosines.items()
        if values
    }


def cosine(a: Array, b: Array) -> float:
    """The cosine of two arrays as vectors; 1 where both are zeros, 0 where only one is or a number is not finite."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not np.isfinite(lengths):
        return 0.0
    if lengths == 0:
        return float(not x.any() and not y.any())
    return float(x @ y) / lengths


def _lengths(metadata: Mapping[str, Any], feeds: Feeds) -> list[int] | None:
    """Lengths of the sequences of a packed batch; None where the batch is padded."""
    roles = {item["role"]: item["name"] for item in metadata["inputs"]}
    if "seq_lens" in roles:
        return [int(length) for length in feeds[roles["seq_lens"]]]
    if "cu_seqlens" in roles:
        return [int(length) for length in np.diff(feeds[roles["cu_seqlens"]])]
    return None


def _sequences(values: Array, layout: str, lengths: list[int] | None) -> Iterator[Array]:
    """A part for every sequence."""
    if layout == "packed" and lengths is not None:
        ends = np.cumsum(lengths)
        return (values[end - length : end] for end, length in zip(ends, lengths, strict=True) if length)
    return iter(values)
