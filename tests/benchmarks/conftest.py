# SPDX-License-Identifier: Apache-2.0
"""Leaves out the tests of benchmarks that need PyTorch if it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import LeftOut, without

NEED_TORCH = {"test_attention_peers.py", "test_attention_positions.py", "test_row_cases.py"}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    """Leaves a module out if it needs torch and torch is missing."""
    reason = without("torch") if module_path.name in NEED_TORCH else None
    return None if reason is None else LeftOut.of(module_path, parent, reason)
