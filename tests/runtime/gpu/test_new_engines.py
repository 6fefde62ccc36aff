# SPDX-License-Identifier: Apache-2.0
"""Engines that are not yet in a file: the check by `padfree build`, and engines of single operators."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from padfree.builder import BuildError
from padfree.builder.engine.engine_builder import BuiltEngine
from padfree.builder.engine.phases import Phases
from padfree.builder.engine_check.checking import check_engine
from padfree.builder.engine_check.reference import compute_reference
from padfree.builder.operator_check import engines
from padfree.builder.operator_check.cases import all_cases
from padfree.onnx_tools.files.model import Model
from padfree.runtime import SessionError

from . import fake_gpu


def test_a_plan_is_checked_before_there_is_a_file(
    setup: Any, packed_model: Callable[..., Path], tmp_path: Path
) -> None:
    """The real backend runs the engine, and no file is read or written."""
    plan, profile = tmp_path / "new.plan", setup.metadata.engine.profile
    reference = compute_reference(Model(onnx.load(str(packed_model()))), setup.metadata, profile)
    asked: dict[str, Any] = {"device": 0, "compare": lambda: "padfree compare a b"}
    actual = check_engine(plan, b"a plan", setup.metadata, reference, **asked)
    assert [item.output for item in actual.outputs] == ["hidden", "lengths"]
    assert [item.relative for item in actual.outputs] == [0.0, 0.0]
    assert setup.machine.enqueues == len(reference.batches) == 4
    assert (setup.machine.captures, setup.machine.open_blocks) == (0, 0)
    setup.machine.run_fails = True
    with pytest.raises(BuildError, match=r"does not run .*'one token'.*new\.plan was not written\..*compare a b"):
        check_engine(plan, b"a plan", setup.metadata, reference, **asked)
    assert not plan.exists()
    assert setup.machine.open_blocks == 0


def test_an_operators_engine_is_built_run_and_timed(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(item for item in all_cases() if item.operator == "PadfreePool" and item.kind == "fp16")
    graph = case.make()
    real, seen = inspect.signature(setup.module.TensorRTBackend), dict[str, Any]()

    class Builder:
        device, tensorrt_version, phases = fake_gpu.GPU, "10.6.0", Phases()

        def __init__(self, *arguments: Any) -> None:
            seen["options"] = arguments

        def begin(self, _progress: Any) -> None:
            """Does nothing before each engine."""

        def build(self, model: onnx.ModelProto, ranges: Any) -> BuiltEngine:
            seen["ranges"] = {item.name: (item.minimum, item.optimum, item.maximum) for item in ranges}
            assert not model.functions
            return BuiltEngine(b"plan", {"PadfreePool": 1})

    class PreparedEngine:
        def enqueue(self) -> None:
            seen["enqueued"] = True

        def download(self) -> dict[str, Any]:
            return {item.name: np.zeros(1) for item in graph.outputs}

        def profile(self, profiler: Any, runs: int) -> None:
            for run in range(runs):
                profiler.report_layer_time(graph.checked_nodes[0], 0.002 + 0.001 * (run == 0))
                profiler.report_layer_time("a cast", 1.0)

    class Backend:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            bound = real.bind(*arguments, **options).arguments
            seen["content"], seen["metadata"] = bound["content"], bound["metadata"]

        def prepare(self, feeds: Any) -> PreparedEngine:
            assert set(feeds) == set(seen["ranges"]) == {item.name for item in seen["metadata"].inputs}
            return PreparedEngine()

        def close(self) -> None:
            seen["closed"] = True

    monkeypatch.setattr(setup.module, "TensorRTBackend", Backend)
    monkeypatch.setattr(engines, "EngineBuilder", Builder)
    monkeypatch.setattr(engines.plugin_library, "load", lambda: None)
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(IProfiler=_Profiler))
    ran = engines.EngineRunner(0).run(graph, graph.model())
    assert ran.time_us == pytest.approx(2.0)
    assert list(ran.outputs) == ["out_0"]
    assert (seen["content"], seen["closed"], seen["enqueued"]) == (b"plan", True, True)
    assert seen["ranges"]["x"] == ((1, 768), (graph.tokens, 768), (graph.tokens, 768))
    assert seen["ranges"]["seq_lens"] == ((1,), (13,), (13,))


def test_the_first_error_of_an_operators_engine_is_told(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(item for item in all_cases() if item.operator == "PadfreePool")

    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Opens without an error."""

        def prepare(self, _feeds: Any) -> Any:
            raise SessionError("illegal address")

        def close(self) -> None:
            raise SessionError("nothing works any more")

    class Builder:
        device, tensorrt_version, phases = fake_gpu.GPU, "10.6.0", Phases()

        def __init__(self, *_: Any) -> None:
            """Starts without an error."""

        def begin(self, _progress: Any) -> None:
            """Does nothing before each engine."""

        def build(self, *_: Any) -> BuiltEngine:
            return BuiltEngine(b"plan", {})

    monkeypatch.setattr(setup.module, "TensorRTBackend", Broken)
    monkeypatch.setattr(engines, "EngineBuilder", Builder)
    monkeypatch.setattr(engines.plugin_library, "load", lambda: None)
    graph = case.make()
    with pytest.raises(SessionError, match="illegal address"):
        engines.EngineRunner(0).run(graph, graph.model())


class _Profiler:
    """A stand-in for TensorRT's IProfiler, whose __init__ has to be called."""
