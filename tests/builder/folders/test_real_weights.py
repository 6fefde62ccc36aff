# SPDX-License-Identifier: Apache-2.0
"""Trained models give the vectors of sentence-transformers; opt-in (tests/support/real_models.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import padfree
import pytest
from padfree.builder import cli

from benchmarks.accuracy.texts import texts_at_hand
from tests.support import real_models

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]
TOLERANCE = 2e-6
"""The tolerance for a vector of length 1, in float32."""
TEXTS = 40


@pytest.fixture(params=sorted(real_models.PACKAGES))
def folder(request: pytest.FixtureRequest) -> Path:
    """A model's folder."""
    found = [path for path in real_models.folders() if path.name == request.param]
    if not found:
        pytest.skip(
            f"needs real weights: python -m tests.support.real_models FOLDER, and {real_models.VARIABLE}=FOLDER"
        )
    return found[0]


def test_vectors_are_those_of_sentence_transformers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("sentence_transformers")
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed), "--strict", "--verify", "whole"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "reading its weights by padfree's definition of" in said
    assert "padfree's definition agrees with transformers" in said
    texts = texts_at_hand(TEXTS)
    wanted = library.SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
    with padfree.Model(packed) as model:
        found = model.encode(texts)
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), wanted, atol=TOLERANCE)
