# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison as plain data: what the terminal, the JSON file and the HTML page show."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...bench.environment import gpu_and_driver, installed_versions
from ...files import write_files
from ..batches import ComparedBatch
from ..metrics import OutputErrors
from ..reasons.bisecting import Departure
from ..tolerances import Tolerance

PACKAGES = ("padfree", "onnx", "onnxruntime", "polygraphy", "numpy", "tensorrt", "torch")


@dataclass(frozen=True)
class BatchFacts:
    """One batch: how many sequences and tokens, and what its mask is like."""

    name: str
    mask: str
    sequences: int
    tokens: int
    padded_tokens: int


@dataclass(frozen=True)
class RunnerReport:
    """One runner against the reference. verdict is one sentence; causes say why it differs, where that was found."""

    name: str
    precision: str
    passed: bool
    verdict: str
    causes: tuple[str, ...]
    tolerance: Tolerance
    outputs: tuple[OutputErrors, ...]
    batches: tuple[str, ...]
    run_ms: float
    bisection: Departure | None = None


@dataclass(frozen=True)
class Report:
    """A comparison. passed: every runner agrees with the original. notes: what the original is compared without.

    `date`: when it was made, in ISO 8601, UTC.
    """

    original: str
    passed: bool
    verdict: str
    runners: tuple[RunnerReport, ...]
    batches: tuple[BatchFacts, ...]
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    date: str = ""

    def with_name(self, file: Path, name: Path) -> Report:
        """The report with the user's own path instead of the temporary file that was made from it."""
        new_report: Report = _rename(self, {str(file): str(name), file.name: name.name or str(name)})
        return new_report

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite become strings, which JSON can hold."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def make_report(
    original: Path, runners: Sequence[RunnerReport], batches: Sequence[ComparedBatch], notes: Sequence[str] = ()
) -> Report:
    """Sums a comparison up."""
    failures = [_difference(item) for item in runners if not item.passed]
    verdict = (
        "; ".join(failures)
        if failures
        else f"the same model: {', '.join(item.name for item in runners)} "
        f"{'agree' if len(runners) > 1 else 'agrees'} with the original on every valid token"
    )
    facts = tuple(
        BatchFacts(item.name, item.kind, len(item.mask), int(item.mask.sum()), item.mask.size) for item in batches
    )
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Report(str(original), not failures, verdict, tuple(runners), facts, tuple(notes), environment(), now)


def _difference(runner: RunnerReport) -> str:
    """The sentence that a runner differs, with the most telling of the known causes."""
    causes = list(runner.causes)
    first = None if runner.bisection is None else runner.bisection.first
    if runner.bisection is not None and first is not None:
        causes.append(f"{runner.bisection.kind} at {first.operator} '{first.node}'")
    return f"{runner.name} differs from the original{': ' if causes else ''}{causes[0] if causes else ''}"


def describe_outcome(passed: bool, errors: Sequence[OutputErrors], tolerance: Tolerance, causes: Sequence[str]) -> str:
    """One sentence on one runner."""
    worst = max(errors, key=lambda item: item.total.relative)
    figures = (
        f"largest errors {max(item.total.absolute for item in errors):.2g} absolute (allowed {tolerance.absolute:g}), "
        f"{worst.total.relative:.2g} relative (allowed {tolerance.relative:g}), smallest cosine "
        f"{min(item.total.cosine for item in errors):.6f}"
    )
    if tolerance.cosine is not None:
        least = min(item.total.sequence_cosine for item in errors)
        figures += f", of a sequence {least:.6f} (allowed {tolerance.cosine:g})"
    if passed:
        return f"agrees: {figures}"
    return f"differs: {'; '.join(causes) or 'no known cause explains it, --bisect finds the first node'} ({figures})"


def write_json(report: Report, path: Path) -> None:
    """Writes the report, whole or not at all."""
    write_files([(path, json.dumps(report.to_dict(), indent=2, allow_nan=False).encode() + b"\n")])


def environment() -> dict[str, str]:
    """Versions and machine; the GPU and its driver where there is one."""
    facts = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return facts | gpu_and_driver() | dict.fromkeys(PACKAGES, "not installed") | installed_versions(PACKAGES)


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    """Strings in a report with other names, the longest first, and everything else as it is."""
    if isinstance(value, str):
        for name, other in names.items():
            value = value.replace(name, other)
        return value
    if isinstance(value, tuple):
        return tuple(_rename(item, names) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {item.name: _rename(getattr(value, item.name), names) for item in fields(value)}
        return replace(value, **changed)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
