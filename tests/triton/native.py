# SPDX-License-Identifier: Apache-2.0
"""Requests to models of the native backend, and their right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.native_triton import VOCABULARY, hidden, pooled_answer

from .calls import Answer, Array

OUTPUTS = ("hidden", "pooled")
Sequences = Sequence[tuple[Array, Array]]
"""The ids and types of each sequence of a request."""


def random_requests(seed: int, count: int, *, longest: int = 64, most: int = 3) -> list[Sequences]:
    """Random requests of 1 to `most` sequences."""
    rng = np.random.default_rng(seed)

    def sequence() -> tuple[Array, Array]:
        length = rng.integers(1, longest + 1)
        return rng.integers(0, VOCABULARY, length, dtype=np.int32), rng.integers(0, 2, length, dtype=np.int32)

    return [[sequence() for _ in range(rng.integers(1, most + 1))] for _ in range(count)]


def tensors(sequences: Sequences, *, with_types: bool = True) -> dict[str, Array]:
    """A request's inputs: rows padded to the longest with ids that no model has, and `seq_lens` if lengths differ."""
    lengths = [len(ids) for ids, _ in sequences]
    width = max(lengths)
    found: dict[str, Array] = {}
    for name, at in (("input_ids", 0), ("token_type_ids", 1))[: 1 + with_types]:
        found[name] = np.full((len(sequences), width), -77, np.int32)
        for row, sequence in zip(found[name], sequences, strict=True):
            row[: len(sequence[at])] = sequence[at]
    if min(lengths) < width:
        found["seq_lens"] = np.array(lengths, np.int32)[:, None]
    return found


def assert_right(answer: Answer, sequences: Sequences, *, outputs: Sequence[str] = OUTPUTS) -> None:
    """Compares all outputs of an answer with what the stand-in should give for its sequences."""
    assert isinstance(answer, dict), answer
    assert set(answer) == set(outputs)
    expected: Mapping[str, Any] = {
        "pooled": np.stack([pooled_answer(ids, types) for ids, types in sequences]),
        "hidden": [hidden(ids, types) for ids, types in sequences],
    }
    if "pooled" in outputs:
        np.testing.assert_array_equal(answer["pooled"], expected["pooled"])
    if "hidden" in outputs:
        width = max(len(ids) for ids, _ in sequences)
        assert answer["hidden"].shape == (len(sequences), width, 2)
        for row, rows in zip(answer["hidden"], expected["hidden"], strict=True):
            np.testing.assert_array_equal(row[: len(rows)], rows)
            assert not row[len(rows) :].any()
