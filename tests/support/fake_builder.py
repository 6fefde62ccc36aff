# SPDX-License-Identifier: Apache-2.0
"""A builder that builds nothing, in place of TensorRT's: `padfree build` without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import onnx
import pytest
from padfree.builder.engine import build, shared_builder
from padfree.builder.engine.engine_builder import BuiltEngine, EngineBuilder, TacticOptions
from padfree.builder.engine.phases import BUILDING, STARTING, Phases
from padfree.builder.engine.progress import watcher_of
from padfree.builder.engine_check import checking
from padfree.builder.errors import BuildError
from padfree.contract.metadata import Metadata
from padfree.runtime.gpu.device import Device
from rich.progress import Progress

from .cpu_engines import CpuEngine


class FakeBuilder(EngineBuilder):
    """Builds plans that only hold their number; `starts` counts builders, `built` lists the profiles of their engines.

    `models` are the models of the engines, which run in their place when they are checked.
    """

    starts = 0
    fails_at: int | None = None
    built: list[dict[str, Any]]
    models: list[onnx.ModelProto]

    def __init__(self, _device: int, _options: TacticOptions, progress: Progress | None) -> None:
        type(self).starts += 1
        self.device, self.tensorrt_version = Device(0, "NVIDIA H200", 9, 0), "10.6.0"
        self.phases = Phases(watcher_of(progress))
        with self.phases.measure(STARTING):
            pass

    def build(self, model: Any, ranges: Any, **_: Any) -> BuiltEngine:
        with self.phases.measure(BUILDING):
            self.built.append({item.name: item.maximum for item in ranges})
            self.models.append(model)
        if len(self.built) == self.fails_at:
            raise BuildError("TensorRT built no engine")
        return BuiltEngine(b"plan %d" % len(self.built), {})


def fake_builder(monkeypatch: pytest.MonkeyPatch) -> type[FakeBuilder]:
    """Replaces TensorRT's builder by a new subclass; models are prepared in this process, which is faster."""

    class Own(FakeBuilder):
        built: list[dict[str, Any]] = []  # noqa: RUF012
        models: list[onnx.ModelProto] = []  # noqa: RUF012

    def open_engine(_plan: Any, content: bytes, metadata: Metadata, _device: int) -> CpuEngine:
        return CpuEngine(Own.models[int(content.split()[1]) - 1], metadata)

    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(shared_builder, "EngineBuilder", Own)
    monkeypatch.setattr(build, "check_machine", lambda *_, **__: None)
    monkeypatch.setattr(build.plugin_library, "load", lambda: None)
    monkeypatch.setattr(checking, "open_engine", open_engine)
    return Own
