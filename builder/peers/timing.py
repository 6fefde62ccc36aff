# SPDX-License-Identifier: Apache-2.0
"""GPU times by events, and CUDA graphs of what is timed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch


def each_ms(work: Callable[[], object], runs: int) -> list[float]:
    """GPU time of every one of some calls back to back."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for start, stop in events:
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(stop)) for start, stop in events]


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
