# SPDX-License-Identifier: Apache-2.0
"""Build phases become bars, and a cancelled build stops at the next step."""

from __future__ import annotations

import io
from types import SimpleNamespace

from padfree.builder.engine.progress import PhaseBars, StageProgress, make_monitor
from rich.console import Console


class ProgressMonitor:
    """A stand-in for TensorRT's base class, which has no behaviour of its own."""


def test_phases_nest_and_disappear() -> None:
    progress = StageProgress(Console(file=io.StringIO(), force_terminal=True))
    bars = PhaseBars(progress)
    bars.start("Building Engine", None, 6)
    bars.start("Tactics", "Building Engine", 10)
    assert bars.step("Tactics", 4)
    assert [(task.description, task.completed, task.total) for task in progress.tasks] == [
        ("  Building Engine", 0, 6),
        ("    Tactics", 5, 10),
    ]
    bars.finish("Tactics")
    bars.finish("never started")
    assert bars.step("never started", 1)
    assert [task.description for task in progress.tasks] == ["  Building Engine"]


def test_interrupts_stop_the_build_without_an_exception() -> None:
    progress = StageProgress(Console(file=io.StringIO()))
    bars = PhaseBars(progress)
    monitor = make_monitor(SimpleNamespace(IProgressMonitor=ProgressMonitor), bars)
    monitor.phase_start("Tactics", None, 3)
    assert monitor.step_complete("Tactics", 0)

    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    progress.update = interrupt  # type: ignore[method-assign]
    assert not monitor.step_complete("Tactics", 1)
    monitor.phase_finish("Tactics")
    progress.add_task = interrupt  # type: ignore[method-assign, assignment]
    monitor.phase_start("Other", None, 1)
    assert bars.cancelled
    assert not monitor.step_complete("gone", 1)
