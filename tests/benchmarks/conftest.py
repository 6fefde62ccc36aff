# SPDX-License-Identifier: Apache-2.0
"""The benchmarks are scripts that import each other by name; some need PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

collect_ignore = [] if importlib.util.find_spec("torch") else ["test_attention_peers.py", "test_row_cases.py"]


def pytest_report_header() -> str:
    return f"benchmark tests: {'without those of peers, torch is not installed' if collect_ignore else 'all'}"
