# SPDX-License-Identifier: Apache-2.0
"""Progress of a rewrite or a build: its stages, and in them TensorRT's IProgressMonitor, as rich progress bars."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from padfree.contract.phases import EXPORTING, HALVING, IMPORTS, REWRITING, VERIFYING, WRITING
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .phases import BUILDING, CHECKING, COMPARING, MEASURING, PARSING, REFERENCE, STARTING, WAITING

LINE_S = 10.0
"""Seconds between two lines about one stage."""
STAGES = MappingProxyType(
    {
        IMPORTS: "importing libraries",
        EXPORTING: "reading the weights",
        REWRITING: "rewriting the graph",
        VERIFYING: "comparing it with the original in onnxruntime",
        HALVING: "converting it to half precision",
        WRITING: "writing the file",
        STARTING: "starting TensorRT",
        WAITING: "preparing the model",
        PARSING: "handing the model to TensorRT",
        BUILDING: "building the engine",
        CHECKING: "loading the engine",
        MEASURING: "timing the engine",
        REFERENCE: "waiting for onnxruntime's answers",
        COMPARING: "comparing the engine's answers with onnxruntime's",
    }
)
"""The stages' texts, by phase."""


class StageProgress(Progress):
    """The stages of a rewrite or a build: bars on a terminal, and lines elsewhere (`contract.phases.Watcher`).

    A line says which stage begins; while one lasts, another line now and then says how far it is. `say` gets the
    lines; without it there are none.
    """

    def __init__(self, console: Console, say: Callable[[str], object] | None = None, *, quiet: bool = False) -> None:
        super().__init__(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),  # names of layers have brackets
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._print_line = None if quiet or console.is_terminal else say
        self._line_s = time.monotonic()
        self._stage: TaskID | None = None

    def begin(self, phase: str) -> None:
        """Begins a stage, and ends the one before it."""
        self.end()
        self._stage = self.add_task(STAGES.get(phase, phase), total=None)
        self._say(STAGES.get(phase, phase))

    def report(self, done: int, of: int) -> None:
        """So many steps of the stage are done."""
        if self._stage is not None:
            self.update(self._stage, completed=done, total=of)

    def end(self) -> None:
        """Ends the stage; its bar stays, full."""
        if self._stage is not None:
            task = self._tasks[self._stage]
            total = task.total or 1
            super().update(self._stage, completed=total, total=total, count="")
            self._stage = None

    def add_task(self, description: str, *arguments: Any, **options: Any) -> TaskID:
        """As rich's; steps are counted beside the bar where there are any."""
        return super().add_task(description, *arguments, count=_count(0, options.get("total")), **options)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As rich's; where there are lines, now and then one says how far the task is."""
        if "completed" in changes:
            task = self._tasks[task_id]
            changes["count"] = _count(changes["completed"], changes.get("total", task.total))
            if changes["count"] and time.monotonic() - self._line_s >= LINE_S:
                self._say(f"{task.description.strip()}: {changes['count'].replace('/', ' of ')}")
        super().update(task_id, **changes)

    def _say(self, line: str) -> None:
        self._line_s = time.monotonic()
        if self._print_line is not None:
            self._print_line(line)


def _count(done: float, total: float | None) -> str:
    return "" if total is None else f"{done:.0f}/{total:.0f}"


def watcher_of(progress: Progress | None) -> StageProgress | None:
    """The bars, if they show stages; rich's own do not."""
    return progress if isinstance(progress, StageProgress) else None


class PhaseBars:
    """TensorRT's nested build phases as bars. rich's Progress locks itself, so phases may end on any thread."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, tuple[TaskID, int]] = {}
        self.cancelled = False

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """Opens a phase's bar, indented below its parent's."""
        depth = self._tasks[parent][1] + 1 if parent in self._tasks else 1
        self._tasks[phase] = (self._progress.add_task("  " * depth + phase, total=steps), depth)

    def step(self, phase: str, step: int) -> bool:
        """Moves a bar; False asks TensorRT to stop."""
        if phase in self._tasks:
            self._progress.update(self._tasks[phase][0], completed=step + 1)
        return not self.cancelled

    def finish(self, phase: str) -> None:
        """Removes a phase's bar."""
        if phase in self._tasks:
            self._progress.remove_task(self._tasks.pop(phase)[0])


def make_monitor(trt: Any, bars: PhaseBars) -> Any:
    """An IProgressMonitor over `bars`. It must live as long as the builder configuration that holds it.

    Ctrl-C arrives inside these calls, where an exception would cross TensorRT's C++ frames: it becomes a request
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
