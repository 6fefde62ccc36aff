# SPDX-License-Identifier: Apache-2.0
"""Where `padfree embed` and `padfree rerank` stand: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .console import error_console
from .options import say

if TYPE_CHECKING:
    from padfree.bulk import Progress as BulkProgress

LINE_S = 10.0


@contextmanager
def shown_progress() -> Iterator[Callable[[BulkProgress], None]]:
    """A bar on a terminal, and elsewhere a line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = error_console()
    if not console.is_terminal:
        yield _Lines().update
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows  {task.fields[rate]}"))
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None, rate="")

        def update(progress: BulkProgress) -> None:
            shown.update(task, total=progress.all_rows, completed=progress.rows, rate=_rate(progress))

        yield update


class _Lines:
    """Progress where there is no terminal: a line every LINE_S."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def update(self, progress: BulkProgress) -> None:
        """Shows where the work stands, if it is time."""
        if progress.rows < progress.all_rows and progress.seconds - self._last_s >= LINE_S:
            self._last_s = progress.seconds
            say(f"{progress.rows} of {progress.all_rows} rows, {_rate(progress)}")


def _rate(progress: BulkProgress) -> str:
    rate = progress.tokens_now / progress.seconds if progress.seconds else 0.0
    return f"{rate:,.0f} tokens/s" + ("" if progress.left_s is None else f", {_duration(progress.left_s)} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
