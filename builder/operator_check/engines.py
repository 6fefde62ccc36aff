# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the graphs of single operators as engines: TensorRT, the plugin, its kernel."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from padfree.contract.metadata import Profile
from padfree.runtime import Array, SessionError, parse_metadata
from padfree.runtime.gpu import plugin_library

from ..engine.engine_builder import EngineBuilder, TacticOptions
from ..engine.plan_writing import describe_plan
from ..engine.profile import ShapeRange
from ..engine_check.checking import open_engine
from .graphs import CaseGraph

TIMED_RUNS = 20


@dataclass(frozen=True)
class Ran:
    """An engine's outputs, and the median time of its checked operators together; None where TensorRT has no times."""

    outputs: Mapping[str, Array]
    time_us: float | None


class EngineRunner:
    """Runs graphs on one GPU, with one builder for all.

    Raises:
        SessionError, BuildError: no GPU, no TensorRT, no builder on this machine, or no plugin library.
    """

    def __init__(self, device: int) -> None:
        self._builder = EngineBuilder(device, TacticOptions(timing_cache=None), None)
        plugin_library.load()
        self.device = self._builder.device
        self.tensorrt_version = self._builder.tensorrt_version

    def run(self, graph: CaseGraph, model: onnx.ModelProto) -> Ran:
        """Builds an engine for exactly the graph's inputs, runs it, and times its layers.

        Raises:
            BuildError: TensorRT or a plugin refuses the graph; SessionError: it does not run.
        """
        self._builder.begin(None)
        engine = self._builder.build(model, _ranges(graph))
        profile = Profile(1, graph.tokens, graph.tokens, len(graph.lengths), max(graph.lengths))
        description = describe_plan(engine, graph.metadata(), profile, self._builder, {})
        metadata = parse_metadata(description, "check.plan")
        backend: Any = open_engine(Path("check.plan"), engine.plan, metadata, self.device.index)
        times: dict[str, list[float]] = defaultdict(list)
        try:
            runner = backend.prepare(graph.feeds)
            runner.enqueue()
            outputs = {name: np.array(value) for name, value in runner.download().items()}
            runner.profile(_profiler(times), TIMED_RUNS)
        except SessionError:
            with contextlib.suppress(SessionError):  # the first error is the one that counts
                backend.close()
            raise
        backend.close()  # and what was prepared
        medians = [statistics.median(times[name]) for name in graph.checked_nodes if name in times]
        return Ran(outputs, sum(medians) if len(medians) == len(graph.checked_nodes) else None)


def _ranges(graph: CaseGraph) -> list[ShapeRange]:
    """A range from one token and one sequence to the graph's shapes, which TensorRT tunes for."""
    ranges = []
    for name, values in graph.feeds.items():
        axes = 2 if graph.interface == "padded" else 1
        least = (*(1 for _ in values.shape[:axes]), *values.shape[axes:])
        ranges.append(ShapeRange(name, least, values.shape, values.shape))
    return ranges


def _profiler(times: dict[str, list[float]]) -> Any:
    """Collects every layer's times in us."""
    import tensorrt

    class Profiler(tensorrt.IProfiler):  # type: ignore[misc]
        """Collects what TensorRT reports after every run."""

        def __init__(self) -> None:
            tensorrt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name].append(1e3 * ms)

    return Profiler()
