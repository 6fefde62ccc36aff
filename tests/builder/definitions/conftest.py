# SPDX-License-Identifier: Apache-2.0
"""Tiny models that are taken for large ones."""

from __future__ import annotations

import pytest
from padfree.builder.definitions import graph
from padfree.onnx_tools.files import graph_io, staged_session
from padfree.onnx_tools.precision import rounding


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every model count as large, in parts of a few weights each."""
    for module in (graph, rounding):
        monkeypatch.setattr(module, "LARGE_MODEL_BYTES", 0)
    for module in (graph, graph_io):
        monkeypatch.setattr(module, "LARGE_BYTES", 1)
    monkeypatch.setattr(staged_session, "PART_BYTES", 1 << 9)
    for name in ("LEAST_PART_BYTES", "KEPT_BYTES"):
        monkeypatch.setattr(staged_session, name, 0)
