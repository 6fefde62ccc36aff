# SPDX-License-Identifier: Apache-2.0
"""GPU times by events, and CUDA graphs of what is timed."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

ROUNDS = 9
RUNS_PER_ROUND = 10


def mean_ms(work: Callable[[], object], runs: int) -> float:
    """GPU time of one call, the mean of some back to back between two events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(runs):
        work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / runs


def each_ms(work: Callable[[], object], runs: int) -> list[float]:
    """GPU time of every one of some calls back to back."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for start, stop in events:
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(stop)) for start, stop in events]


def time_ms(work: Callable[[], object]) -> float:
    """Median GPU time of one call over rounds of back-to-back calls."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    return statistics.median(mean_ms(work, RUNS_PER_ROUND) for _ in range(ROUNDS))


@dataclass(frozen=True)
class GraphReplay:
    """Replays a CUDA graph when called.

    The graph holds only addresses; this object keeps `work` alive, and with it what the captured work reads and writes.
    Memory that was allocated during the capture lies in a pool that the graph keeps.
    """

    graph: torch.cuda.CUDAGraph
    work: Callable[[], object]

    def __call__(self) -> None:
        """Enqueues the graph on the current stream."""
        self.graph.replay()


def capture(work: Callable[[], object]) -> GraphReplay:
    """A CUDA graph of the work, after some plain runs of it on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()  # a graph or engine that is freed during the capture breaks it
    gc.disable()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    finally:
        gc.enable()
    return GraphReplay(graph, work)
