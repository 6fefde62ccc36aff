# SPDX-License-Identifier: Apache-2.0
"""The log of a server: what happened to its processes, and how many requests failed, in a line per second at most."""

from __future__ import annotations

import asyncio
import logging

from .metrics import ProcessCounters

REPORT_S = 1.0
"""The log gets at most one line in this time."""

_log = logging.getLogger(__name__)


class Reporter:
    """Writes the log: one line in REPORT_S at most, whatever happens.

    Args:
        counters: know the failures of all processes.
    """

    def __init__(self, counters: ProcessCounters) -> None:
        self._counters = counters
        self._lines: list[str] = []
        self._failures: dict[str, int] = {}

    def say(self, line: str) -> None:
        """Says something the next time."""
        self._lines.append(line)

    async def run(self) -> None:
        """Says what there is to say, until it is cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.report()

    def report(self) -> None:
        """Writes what there is to say, in one line."""
        failures = self._counters.failures()
        new = {label: count - self._failures.get(label, 0) for label, count in failures.items()}
        parts = self._lines[-1:]
        if len(self._lines) > 1:
            parts.append(f"and {len(self._lines) - 1} more like it")
        if count := sum(new.values()):
            kinds = ", ".join(f"{number} {label}" for label, number in new.items() if number)
            parts.append(f"{count} request{'s' * (count != 1)} ended with an error ({kinds})")
        self._lines, self._failures = [], failures
        if parts:
            _log.warning("%s", "; ".join(parts))
