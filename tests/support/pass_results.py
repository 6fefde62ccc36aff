# SPDX-License-Identifier: Apache-2.0
"""Which tests passed in one run of pytest, so that a later one need not run them again: CI runs pytest twice."""

from __future__ import annotations

from pathlib import Path

import pytest


class PassRun:
    """Writes the ids of all tests that passed, one per line, when the run ends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test that passed."""
        if report.when == "call" and report.passed:
            self.ids.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Writes the ids."""
        self.file.write_text("".join(f"{each}\n" for each in self.ids), encoding="utf-8")


def leave_out(items: list[pytest.Item], file: Path, config: pytest.Config) -> None:
    """Removes the tests that a file lists from `items`."""
    listed = set(file.read_text("utf-8").splitlines())
    left_out = [item for item in items if item.nodeid in listed]
    items[:] = [item for item in items if item.nodeid not in listed]
    config.hook.pytest_deselected(items=left_out)
