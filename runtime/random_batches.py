# SPDX-License-Identifier: Apache-2.0
"""Random values that a model takes, for measurements and checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata

from .request import RaggedBatch
from .rows import Array

UNKNOWN_LIMIT = 2
"""Ids are drawn below it where no table is known."""


def random_values(
    shape: Sequence[int],
    rng: np.random.Generator,
    *,
    limit: int | None,
    refused_ids: Collection[int],
    are_floats: bool,
) -> Array:
    """Numbers in float32, or ids in int32: those of a table of `limit` rows but for those that are refused."""
    if are_floats:
        return rng.standard_normal(shape, dtype=np.float32)
    ids = np.setdiff1d(np.arange(limit or UNKNOWN_LIMIT, dtype=np.int32), list(refused_ids))
    return rng.choice(ids, shape)


def random_rows(metadata: Metadata, count: int, rng: np.random.Generator) -> dict[str, Array]:
    """The inputs with a row per sequence, which have the same row for all where the model has it once for a batch."""
    rows: dict[str, Array] = {}
    for item in metadata.sequence_inputs():
        values = _values(item, 1 if item.shared else count, rng)
        rows[item.name] = np.repeat(values, count // len(values), axis=0)
    return rows


def random_batch(metadata: Metadata, seq_lens: Sequence[int], rng: np.random.Generator) -> RaggedBatch:
    """Sequences of these lengths."""
    total = sum(seq_lens)
    tokens = {item.name: _values(item, total, rng) for item in metadata.token_inputs()}
    return RaggedBatch(tokens, np.asarray(seq_lens, np.int32), random_rows(metadata, len(seq_lens), rng))


def _values(item: InputInfo, count: int, rng: np.random.Generator) -> Array:
    shape, refused_ids = (count, *item.trailing_shape), item.excluded
    return random_values(shape, rng, limit=item.limit, refused_ids=refused_ids, are_floats=item.holds_floats)
