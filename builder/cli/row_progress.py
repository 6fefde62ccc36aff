# SPDX-License-Identifier: Apache-2.0
"""Where work on rows or runs stands: a bar on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from .console import LINE_S, error_console
from .options import say


class RowsDone(Protocol):
    """Where the work stands; padfree.bulk's Progress is one."""

    @property
    def rows(self) -> int:
        """Rows that are done."""

    @property
    def all_rows(self) -> int:
        """All rows of the work."""

    @property
    def tokens_now(self) -> int:
        """Tokens that were done in `seconds`."""

    @property
    def seconds(self) -> float:
        """Seconds since this run began."""

    @property
    def left_s(self) -> float | None:
        """Seconds until the end; None before anything is done."""


@dataclass(frozen=True)
class TokensDone:
    """RowsDone as plain numbers; `all_tokens` is None if tokens are unknown until they are done."""

    rows: int
    all_rows: int
    tokens_now: int
    all_tokens: int | None
    seconds: float

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the present rate."""
        done, everything = self.tokens_now, self.all_tokens
        if everything is None:
            done, everything = self.rows, self.all_rows
        return (everything - done) * self.seconds / done if done else None


@contextmanager
def show_progress(*, quiet: bool, what: str = "rows") -> Iterator[Callable[[RowsDone], None]]:
    """Shows progress: a bar on a terminal, elsewhere a line every LINE_S. `what` names the rows."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = error_console()
    if quiet or not console.is_terminal:
        yield (lambda _: None) if quiet else _Lines(what).update
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what + "  {task.fields[rate]}"))
    with Progress(*columns, console=console, transient=True) as progress_bar:
        task = progress_bar.add_task("", total=None, rate="")

        def update(progress: RowsDone) -> None:
            progress_bar.update(task, total=progress.all_rows, completed=progress.rows, rate=_rate(progress))

        yield update


def show_batches(
    lengths: list[int], *, quiet: bool, what: str = "rows"
) -> AbstractContextManager[Callable[[int, int], None]]:
    """Shows the progress through sequences of these `lengths`; every batch reports its sequences and tokens."""
    return _show_counts(len(lengths), sum(lengths), quiet, what)


def show_tokenising(texts: int, *, quiet: bool) -> AbstractContextManager[Callable[[int, int], None]]:
    """Shows how many texts have been tokenised; every portion reports its texts and tokens."""
    return _show_counts(texts, None, quiet, "texts tokenised")


@contextmanager
def _show_counts(all_rows: int, all_tokens: int | None, quiet: bool, what: str) -> Iterator[Callable[[int, int], None]]:
    start, rows, tokens = time.perf_counter(), 0, 0

    with show_progress(quiet=quiet, what=what) as show:
        show(TokensDone(0, all_rows, 0, all_tokens, 0.0))

        def done(more_rows: int, more_tokens: int) -> None:
            nonlocal rows, tokens
            rows, tokens = rows + more_rows, tokens + more_tokens
            show(TokensDone(rows, all_rows, tokens, all_tokens, time.perf_counter() - start))

        yield done


class _Lines:
    """Progress where there is no terminal: a line every LINE_S."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last_s = 0.0

    def update(self, progress: RowsDone) -> None:
        """Shows where the work stands if LINE_S have passed."""
        if progress.rows < progress.all_rows and progress.seconds - self._last_s >= LINE_S:
            self._last_s = progress.seconds
            say(f"{progress.rows} of {progress.all_rows} {self._what}, {_rate(progress)}")


def _rate(progress: RowsDone) -> str:
    rate = progress.tokens_now / progress.seconds if progress.seconds else 0.0
    return f"{rate:,.0f} tokens/s" + ("" if progress.left_s is None else f", {_duration(progress.left_s)} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
