# SPDX-License-Identifier: Apache-2.0
"""What a job of `padfree embed` takes in its steady state: rates between first and last shards, cores, idle GPUs."""

from __future__ import annotations

import operator
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from padfree.bulk import Progress

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_MS = 100
EDGE_S = 0.3  # samples look back


@dataclass
class Steady:
    """Records a job's progress while every worker has work.

    This starts when each worker has done a shard, and ends when one has done its last.

    Attributes:
        points: for every finished shard, the time, the tokens of every worker, and the seconds of all cores.
    """

    points: list[tuple[float, tuple[int, ...], float]] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        """Records a point."""
        done = progress.by_worker
        if all(done) and (not self.points or done != self.points[-1][1]):
            self.points.append((time.perf_counter(), done, cpu_seconds(os.getpid())))

    @property
    def tokens_a_second(self) -> float:
        """Tokens per second between the first point and the last."""
        (start, before, _), (end, after, _) = self.ends
        return (sum(after) - sum(before)) / (end - start)

    @property
    def span(self) -> tuple[float, float]:
        """The times of the first point and the last."""
        start, end = self.ends
        return start[0], end[0]

    @property
    def cores(self) -> float:
        """Cores in use by this process and its descendants between the first point and the last."""
        (start, _, before), (end, _, after) = self.ends
        return (after - before) / (end - start)

    @property
    def ends(self) -> tuple[tuple[float, tuple[int, ...], float], ...]:
        """The first point, and the first one from which on some worker does nothing more."""
        final = self.points[-1][1]
        return self.points[0], next(point for point in self.points if any(map(operator.eq, point[1], final)))


def cpu_seconds(pid: int) -> float:
    """Seconds of all cores that a process and its living descendants have used."""
    seconds = 0.0
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / TICKS
        for task in Path(f"/proc/{pid}/task").iterdir():
            seconds += sum(map(cpu_seconds, map(int, (task / "children").read_text().split())))
    return seconds


@dataclass
class GpuUse:
    """Samples of the share of time in which a GPU ran some kernel, in percent, with their times."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def idle(self, start: float, end: float) -> float | None:
        """Share of the time between two moments without a kernel; None if there are too few samples."""
        inside = [percent for at, percent in self.samples if start + EDGE_S <= at <= end]
        return 1 - sum(inside) / len(inside) / 100 if len(inside) >= 5 else None


@contextmanager
def gpu_use(gpu: int) -> Iterator[GpuUse]:
    """Samples nvidia-smi until the context ends."""
    result = GpuUse()
    query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--id={gpu}", f"-lms={SAMPLE_MS}"]
    with subprocess.Popen(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True) as process:

        def collect() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip().isdecimal():
                    result.samples.append((time.perf_counter(), int(line)))

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        try:
            yield result
        finally:
            process.terminate()
            thread.join(5)
