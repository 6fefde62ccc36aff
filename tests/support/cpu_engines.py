# SPDX-License-Identifier: Apache-2.0
"""Engines without a GPU: a plan that holds what TensorRT's parser gets, run by onnxruntime and rounded as on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import pytest
from padfree.builder.engine import build, shared_builder
from padfree.builder.engine.engine_builder import BuiltEngine, EngineBuilder
from padfree.builder.engine.phases import BUILDING, Phases
from padfree.builder.engine_check import checking
from padfree.contract.metadata import Metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.runtime.backend import Backend
from padfree.runtime.gpu.device import Device

Change = Callable[[onnx.ModelProto], None]


class CpuEngine:
    """Runs the model that TensorRT's parser gets, in place of an engine."""

    def __init__(self, model: onnx.ModelProto, metadata: Metadata) -> None:
        half = metadata.precision != "fp32"
        plain = with_rounding(Model(model), metadata.precision).proto if half else with_functions(model)
        self._session = open_session(Model(plain))
        self._names = [item.name for item in metadata.outputs]
        self.runs: list[Mapping[str, npt.NDArray[Any]]] = []
        self.closed = False

    def run(self, feeds: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """The model's outputs."""
        self.runs.append(feeds)
        return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))

    def start(self, *_: Any, **__: Any) -> Any:
        """Not needed by builds and checks."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the engine, which has to happen only once."""
        assert not self.closed
        self.closed = True


class CpuBuilder(EngineBuilder):
    """Makes plans that hold what TensorRT's parser would get; `change` alters it as a broken kernel would."""

    change: Change | None = None

    def __init__(self, *_: Any) -> None:
        self.device, self.tensorrt_version, self.phases = Device(0, "NVIDIA H200", 9, 0), "10.6.0", Phases()

    def build(
        self, model: onnx.ModelProto, _ranges: Any, *, content: memoryview | None = None, **_: Any
    ) -> BuiltEngine:
        with self.phases.measure(BUILDING):
            whole = onnx.ModelProto()
            whole.CopyFrom(model if content is None else onnx.load_model_from_string(bytes(content)))
        if self.change is not None:
            self.change(whole)
        return BuiltEngine(whole.SerializeToString(), {})


def use_cpu_engines(
    monkeypatch: pytest.MonkeyPatch, change: Change | None = None, *, apart: bool = False
) -> list[CpuEngine]:
    """Makes builds write such plans, and their checks run them; returns the engines that were opened.

    Models are prepared in this process, which is faster here, or `apart` in a process of their own, as in real use.
    """
    opened: list[CpuEngine] = []

    class Own(CpuBuilder):
        pass

    Own.change = staticmethod(change) if change is not None else None  # type: ignore[assignment]

    def open_engine(_plan: Path, content: bytes, metadata: Metadata, _device: int) -> Backend:
        opened.append(CpuEngine(onnx.load_model_from_string(content), metadata))
        return opened[-1]

    if not apart:
        monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(shared_builder, "EngineBuilder", Own)
    monkeypatch.setattr(build, "check_machine", lambda *_, **__: None)
    monkeypatch.setattr(build, "_gpu", lambda _: Device(0, "NVIDIA H200", 9, 0))
    monkeypatch.setattr(build.plugin_library, "load", lambda: None)
    monkeypatch.setattr(checking, "open_engine", open_engine)
    return opened
