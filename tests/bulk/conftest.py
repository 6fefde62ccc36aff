# SPDX-License-Identifier: Apache-2.0
"""Small models for all tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("pyarrow") else ["test_*.py"]  # the extra `bulk` is not there


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model with one vector a text."""
    from tests.support.bulk_jobs import write_embedder

    return write_embedder(tmp_path_factory.mktemp("embedder") / "embedder.onnx")


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model with one score a pair."""
    from tests.support.bulk_jobs import write_reranker

    return write_reranker(tmp_path_factory.mktemp("reranker") / "reranker.onnx")
