# SPDX-License-Identifier: Apache-2.0
"""Some benchmarks need PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import LeftOut, without

NEED_TORCH = {"test_attention_peers.py", "test_attention_positions.py", "test_row_cases.py"}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    """Their tests without torch."""
    reason = without("torch") if module_path.name in NEED_TORCH else None
    return None if reason is None else LeftOut.of(module_path, parent, reason)
