# SPDX-License-Identifier: Apache-2.0
"""Progress of a build: TensorRT's IProgressMonitor shown as rich progress bars."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


def make_progress(console: Console) -> Progress:
    """Bars for a terminal; where there is none, rich prints them once, at the end."""
    return Progress(
        TextColumn("{task.description}", markup=False),  # names of layers have brackets
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=console.is_terminal,
        disable=not console.is_terminal,
    )


class PhaseBars:
    """TensorRT's nested build phases as bars. rich's Progress locks itself, so phases may end on any thread."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, tuple[TaskID, int]] = {}
        self.cancelled = False

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """Opens a phase's bar, indented below its parent's."""
        depth = self._tasks[parent][1] + 1 if parent in self._tasks else 0
        self._tasks[phase] = (self._progress.add_task("  " * depth + phase, total=steps), depth)

    def step(self, phase: str, step: int) -> bool:
        """Moves a bar; False asks TensorRT to stop."""
        if phase in self._tasks:
            self._progress.update(self._tasks[phase][0], completed=step + 1)
        return not self.cancelled

    def finish(self, phase: str) -> None:
        """Takes a phase's bar away."""
        if phase in self._tasks:
            self._progress.remove_task(self._tasks.pop(phase)[0])


def make_monitor(trt: Any, bars: PhaseBars) -> Any:
    """An IProgressMonitor over `bars`. It must live as long as the builder configuration that holds it.

    Ctrl-C arrives inside these calls, where an exception would cross TensorRT's C++ frames: it is kept as a wish
    to stop, which step_complete passes on.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Forwards TensorRT's calls."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            try:
                bars.start(phase_name, parent_phase, num_steps)
            except KeyboardInterrupt:
                bars.cancelled = True

        def step_complete(self, phase_name: str, step: int) -> bool:
            try:
                return bars.step(phase_name, step)
            except KeyboardInterrupt:
                bars.cancelled = True
                return False

        def phase_finish(self, phase_name: str) -> None:
            try:
                bars.finish(phase_name)
            except KeyboardInterrupt:
                bars.cancelled = True

    return Monitor()
