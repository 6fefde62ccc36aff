# SPDX-License-Identifier: Apache-2.0
"""The results of an attack: outcomes, errors, latencies of one caller, and memory of the server's processes."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ENDS = 6
"""Memory is compared between the first and the last of this many parts of the second half."""


@dataclass(frozen=True)
class Look:
    """Memory of the server at one moment.

    Attributes:
        second: since the beginning.
        model: (process id, resident bytes) of the process with the model.
        kept: the same for the front-end that is left alone, once there is one.
        all_bytes: of all processes.
    """

    second: float
    model: tuple[int, int]
    kept: tuple[int, int]
    all_bytes: int


@dataclass
class Tally:
    """The results of an attack.

    Attributes:
        outcomes: how many requests ended how.
        disturbances: what was done to the server, and how often.
        wrong: answers that do not belong to their requests, and servers that did not behave as they should.
        latencies: seconds that each answer took for the caller who wants one text at a time.
        memory: measurements of the processes, one after the other.
        starts: seconds that servers took to be back after a kill.
        seconds: how long the attack lasted.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    disturbances: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    memory: list[Look] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """The number of requests sent, whatever their outcome."""
        return sum(self.outcomes.values())

    def latency_ms(self) -> dict[str, float]:
        """Percentiles of the latency of one text at a time."""
        latencies = self.latencies or [0.0]
        return {f"p{share}": round(1e3 * float(np.percentile(latencies, share)), 1) for share in (50, 90, 99)}

    def growth(self) -> float | None:
        """By what share the process with the model and the front-end `kept` together grew in the second half.

        Compares medians over a sixth of that half each; None if one of them was not the same process all the time.
        """
        half = [look for look in self.memory if look.second >= self.seconds / 2]
        if len(half) < ENDS or len({(look.model[0], look.kept[0]) for look in half}) > 1:
            return None
        count = len(half) // ENDS
        first, last = (
            median(look.model[1] + look.kept[1] for look in looks) for looks in (half[:count], half[-count:])
        )
        return last / first - 1 if half[0].kept[0] else None


def summary(tally: Tally, log: str) -> dict[str, Any]:
    """The figures."""
    growth = tally.growth()
    looks = [tally.memory[len(tally.memory) * at // 8] for at in range(8)] if tally.memory else []
    return {
        "seconds": round(tally.seconds, 1),
        "requests": tally.requests,
        "requests_a_second": round(tally.requests / max(tally.seconds, 1e-9), 1),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "disturbances": dict(sorted(tally.disturbances.items())),
        "wrong": tally.wrong[:20],
        "one_text_ms": tally.latency_ms(),
        "one_text_count": len(tally.latencies),
        "started_again_within_s": round(max(tally.starts), 1) if tally.starts else None,
        "memory_mib": [
            {
                "second": round(look.second),
                "model": round(look.model[1] / 2**20, 1),
                "kept_front_end": round(look.kept[1] / 2**20, 1),
                "all": round(look.all_bytes / 2**20, 1),
            }
            for look in (*looks, *tally.memory[-1:])
        ],
        "memory_growth_second_half": None if growth is None else round(growth, 4),
        "log_lines": len(log.splitlines()),
        "tracebacks": tracebacks(log),
    }


def tracebacks(log: str) -> list[str]:
    """The last lines of all tracebacks, except those of processes whose parent was killed before they had begun."""
    found = re.finditer(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(.*)", log)
    return [one[2] for one in found if not ("spawn_main" in one[1] and "EOFError" in one[2])]


def resident(pid: int) -> int:
    """Bytes of a process in memory; 0 if it is gone."""
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return 1024 * int(found[1]) if found else 0
    return 0
