# SPDX-License-Identifier: Apache-2.0
"""The results of a check as plain values: for tables, and for whoever reports a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from padfree.runtime import SessionError
from padfree.runtime.gpu import device_code, plugin_library

from .checking import CaseResult

_DIGITS = 4


def make_report(results: Sequence[CaseResult], environment: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The report of one GPU: what it is, what ran on it, counts by state, and every case.

    Args:
        results: one for each case.
        environment: "gpu" and "tensorrt", as the worker tells them.
        version: padfree's.
    """
    return {
        "padfree": version,
        "tensorrt": environment.get("tensorrt"),
        "gpu": environment.get("gpu"),
        "library": library_facts(),
        "counts": dict(Counter(item.state for item in results)),
        "cases": [_plain(item) for item in results],
    }


def library_facts() -> dict[str, Any]:
    """What the plugin library was compiled for, and with what."""
    info = plugin_library.read_build_info()
    try:
        compiled = device_code.architectures(plugin_library.find())
    except SessionError:
        compiled = None
    return {"architectures": None if compiled is None else list(compiled), "cuda_version": info.get("cuda_version")}


def is_right(results: Sequence[CaseResult]) -> bool:
    """Whether nothing is wrong, and something was checked."""
    states = {item.state for item in results}
    return "right" in states and states <= {"right", "not here"}


def _plain(result: CaseResult) -> dict[str, Any]:
    return {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for name, value in asdict(result).items()
    }
