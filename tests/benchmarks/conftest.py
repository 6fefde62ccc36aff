# SPDX-License-Identifier: Apache-2.0
"""Some benchmarks need PyTorch."""

from __future__ import annotations

import importlib.util

NEED_TORCH = [
    "attention/test_attention_peers.py",
    "attention/test_attention_positions.py",
    "attention/test_task_costs.py",
    "kernels/test_row_cases.py",
]
collect_ignore = [] if importlib.util.find_spec("torch") else NEED_TORCH


def pytest_report_header() -> str:
    return f"benchmark tests: {'without those of peers, torch is not installed' if collect_ignore else 'all'}"
