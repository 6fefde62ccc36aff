# SPDX-License-Identifier: Apache-2.0
"""The account of a CUDA graph's replay: what each kind of kernel adds to its time, from CUPTI's records."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

FAMILIES = (
    ("attention", r"[Aa]ttention"),
    ("schedule", r"cumulate|[Ss]chedule|[Tt]ask"),
    ("embedding", r"[Ee]mbed|TableSource|tokenRows"),
    ("layer norm", r"[Nn]orm"),
    ("product", r"[Ll]inear|resident|gemm|xmma|cutlass|nvjet"),
)
"""What kernels compute, and patterns for their names; the first match counts."""
GEMMS = ("QKV product", "output product", "intermediate product, activation", "down product")
"""The GEMMs of a layer, in order."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of one replay; times in us since the replay's first kernel."""

    name: str
    start_us: float
    end_us: float


def family_of(kernel: Kernel) -> str:
    """What a kernel computes, as far as its name tells."""
    return next((family for family, pattern in FAMILIES if re.search(pattern, kernel.name)), "other")


def kinds_of(replay: list[Kernel]) -> list[str]:
    """The table's row for each kernel: a layer's GEMMs are distinguished by their order."""
    families = [family_of(kernel) for kernel in replay]
    chain = [i for i, family in enumerate(families) if family in ("product", "attention", "layer norm")]
    following = dict(itertools.pairwise(chain))
    next_gemm = dict(itertools.pairwise(GEMMS))
    kinds, last = list(families), ""
    for i in (i for i in chain if families[i] == "product"):
        before_attention = i in following and families[following[i]] == "attention"
        kinds[i] = last = GEMMS[0] if before_attention else next_gemm.get(last, "product")
    return kinds


def replays_of(trace: Path, count: int) -> list[list[Kernel]]:
    """The kernels of each replay in the profiler's trace, in the order in which they start."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    result = sorted(
        (event for event in events if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")),
        key=lambda event: float(event["ts"]),
    )
    size, rest = divmod(len(result), count)
    if rest or not size:
        raise SystemExit(f"{len(result)} kernels were recorded in {count} replays; allowed: as many in each; run again")
    replays = []
    for first in range(0, len(result), size):
        part = result[first : first + size]
        zero = float(part[0]["ts"])
        replays.append(
            [
                Kernel(str(event["name"]), float(event["ts"]) - zero, float(event["ts"]) - zero + float(event["dur"]))
                for event in part
            ]
        )
    return replays


def account(replay: list[Kernel]) -> dict[str, dict[str, float]]:
    """Per kind: kernels, us they were resident, us they added to the run, the most one added, us of gaps before."""
    table: dict[str, dict[str, float]] = defaultdict(
        lambda: dict.fromkeys(("kernels", "busy_us", "adds_us", "most_us", "gap_us"), 0.0)
    )
    end = 0.0
    for kernel, kind in zip(replay, kinds_of(replay), strict=True):
        row = table[kind]
        row["kernels"] += 1
        row["busy_us"] += kernel.end_us - kernel.start_us
        adds_us = max(kernel.end_us - end, 0.0)
        row["adds_us"] += adds_us
        row["most_us"] = max(row["most_us"], adds_us)
        row["gap_us"] += max(kernel.start_us - end, 0.0)
        end = max(end, kernel.end_us)
    return dict(table)
