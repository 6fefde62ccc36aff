# SPDX-License-Identifier: Apache-2.0
"""Small models for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import LeftOut, without


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    """Without the extra `bulk` nothing here can be imported."""
    reason = without("pyarrow")
    return None if reason is None else LeftOut.of(module_path, parent, reason)


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model with one vector per text."""
    from tests.support.bulk_jobs import write_embedder

    return write_embedder(tmp_path_factory.mktemp("embedder") / "embedder.onnx")


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model with one score per pair."""
    from tests.support.bulk_jobs import write_reranker

    return write_reranker(tmp_path_factory.mktemp("reranker") / "reranker.onnx")
