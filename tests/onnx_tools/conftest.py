# SPDX-License-Identifier: Apache-2.0
"""What the rewriter's tests share."""

from __future__ import annotations

import os

import pytest

from .rewritings import Rewritings


@pytest.fixture(scope="session")
def rewritings(tmp_path_factory: pytest.TempPathFactory) -> Rewritings:
    """Rewritten models that are made once, also where pytest-xdist shares the tests among processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rewritings"
    folder.mkdir(exist_ok=True)
    return Rewritings(folder)
