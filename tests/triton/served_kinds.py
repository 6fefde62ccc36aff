# SPDX-License-Identifier: Apache-2.0
"""What the servers of these tests serve, and how answers are checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session

from .calls import Answer

TOKENIZER = DEMO_DATA / "tokenizer.json"
TRUNCATED_TO = 16
VOCABULARY = 930
OUTPUTS = ("last_hidden_state", "pooler_output")
TOLERANCE = 1e-5  # batches differ, so sums of hundreds of fp32 numbers do, too; wrong answers are off by 0.1


def random_sequences(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    """Sequences of 1 to `longest` random token ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def assert_right(
    answer: Answer, sequences: Sequence[Sequence[int]], session: Session, types: Sequence[Sequence[int]] | None = None
) -> None:
    """Compares the answer to one request with what the session gives for its sequences."""
    assert isinstance(answer, dict), answer
    request = {"input_ids": sequences} if types is None else {"input_ids": sequences, "token_type_ids": types}
    expected = session.run(request)
    np.testing.assert_allclose(answer["pooler_output"], np.stack(expected["pooler_output"]), atol=TOLERANCE)
    hidden = answer["last_hidden_state"]
    assert hidden.shape[:2] == (len(sequences), max(map(len, sequences)))
    for row, states in zip(hidden, expected["last_hidden_state"], strict=True):
        np.testing.assert_allclose(row[: len(states)], states, atol=TOLERANCE)
        assert not row[len(states) :].any()
