# SPDX-License-Identifier: Apache-2.0
"""Engines that take shared prefixes: batches with them, in CUDA graphs too, against each sequence alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.engine.shared_builder import SharedBuilder
from padfree.builder.folders.source import opened
from padfree.runtime import Session

from tests.support.scorers import read, write_scorer

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LARGEST = {"fp32": 1e-2, "fp16": 2e-2, "bf16": 1e-1}
"""Largest difference of probabilities: TF32; roundings to 11 and 8 bits at widths of 32."""


@pytest.fixture(scope="module")
def builder() -> SharedBuilder:
    """One builder for all tests, as TensorRT's takes seconds to start."""
    return SharedBuilder()


@pytest.mark.parametrize("precision", list(LARGEST))
@pytest.mark.parametrize("longest", [128, 320])
def test_engine(longest: int, precision: str, builder: SharedBuilder, tmp_path: Path) -> None:
    """Sequences of up to 128 tokens take another kernel where they share nothing."""
    folder, plan = write_scorer("qwen3", tmp_path / "Qwen3-Reranker-0.6B"), tmp_path / "model.plan"
    with opened(folder) as source:
        build_engine(
            source.path, plan, shared_prefixes=True, precision=precision, max_batch=40, max_seq_len=longest,
            builder=builder,
        )  # fmt: skip
    rng = np.random.default_rng(0)
    query = rng.integers(0, 400, longest // 2).tolist()
    sequences = [query + rng.integers(0, 400, rng.integers(1, longest // 2)).tolist() for _ in range(25)]
    sequences += [rng.integers(0, 400, 30).tolist(), [], query]
    with Session(plan) as session:
        alone = [session.run([ids])["scores"][0] for ids in sequences]
        assert session.tokens_saved == 0
        for _ in range(4):  # the third run of a size is captured in a graph, the fourth replays it
            together = session.run(sequences)["scores"]
            np.testing.assert_allclose(together, alone, atol=LARGEST[precision])
        assert session.tokens_saved == 4 * 25 * (len(query) - 1)
        other = session.run([[5, *ids] for ids in sequences])["scores"]  # of the same size, and another prefix
        expected = [session.run([[5, *ids]])["scores"][0] for ids in sequences]
        np.testing.assert_allclose(other, expected, atol=LARGEST[precision])
        few = session.run(sequences[:2] + sequences[25:27])["scores"]
        np.testing.assert_allclose(few, [alone[at] for at in (0, 1, 25, 26)], atol=LARGEST[precision])


def test_answers_of_transformers(builder: SharedBuilder, tmp_path: Path) -> None:
    folder, plan = write_scorer("qwen3", tmp_path / "Qwen3-Reranker-0.6B"), tmp_path / "model.plan"
    with opened(folder) as source:
        build_engine(source.path, plan, shared_prefixes=True, precision="fp16", max_batch=40, max_seq_len=512,
                     builder=builder)  # fmt: skip
    ids, scores = read("qwen3").ids, read("qwen3").scores
    with Session(plan) as session:
        found = session.run([row for row in ids for _ in range(3)])["scores"]
        assert session.tokens_saved > 0
    np.testing.assert_allclose(np.ravel(found), np.repeat(scores, 3), atol=LARGEST["fp16"])
