# SPDX-License-Identifier: Apache-2.0
"""What EngineBuilder asks of TensorRT and does with the answers, with a stand-in that records calls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from padfree.builder import BuildError
from padfree.builder.engine import engine_builder, network, phases
from padfree.builder.engine.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.engine.gpu_memory import check_room
from padfree.builder.engine.profile import ShapeRange
from padfree.runtime.gpu.device import Device
from rich.progress import Progress

RANGES = [ShapeRange("x", (1,), (60,), (100,))]


class Config:
    def __init__(self) -> None:
        self.cleared: list[str] = []
        self.flags: list[str] = []
        self.limits: dict[str, int] = {}
        self.profiles: list[Any] = []
        self.profiling_verbosity = ""
        self.builder_optimization_level = 3
        self.progress_monitor: Any = None
        self.cache: bytes | None = None

    def clear_flag(self, flag: str) -> None:
        self.cleared.append(flag)

    def set_flag(self, flag: str) -> None:
        self.flags.append(flag)

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.limits[pool] = size

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> Any:
        return SimpleNamespace(serialize=lambda: content)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self.cache = cache.serialize()
        return not ignore_mismatch

    def get_timing_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: b"timings")


class TensorRT:
    """The parts of TensorRT's module that a build touches."""

    __version__ = "10.6.0.26"
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    ProfilingVerbosity = SimpleNamespace(DETAILED="detailed")
    MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    BuilderFlag = SimpleNamespace(TF32="tf32", FP16="fp16")
    LayerType = SimpleNamespace(PLUGIN_V3="plugin")
    LayerInformationFormat = SimpleNamespace(JSON="json")
    IProgressMonitor = object

    def __init__(self) -> None:
        self.config = Config()
        self.network_flags = -1
        self.free_bytes = 80 << 30
        self.plan: bytes | None = b"the plan"
        self.says = ["out of memory"]
        self.engine_layers = ["pool"]
        self.during_build: Callable[[], None] = lambda: None

    def Builder(self, _logger: Any) -> Any:  # noqa: N802
        def create_network(flags: int) -> Any:
            self.network_flags = flags
            return SimpleNamespace(num_layers=1, get_layer=lambda _at: SimpleNamespace(name="pool", type="plugin"))

        def build_serialized_network(_network: Any, _config: Any) -> bytes | None:
            self.during_build()
            return self.plan

        def create_optimization_profile() -> Any:
            shapes: dict[str, Any] = {}
            return SimpleNamespace(shapes=shapes, set_shape=lambda name, *values: shapes.update({name: values}))

        return SimpleNamespace(
            create_network=create_network,
            create_builder_config=lambda: self.config,
            create_optimization_profile=create_optimization_profile,
            build_serialized_network=build_serialized_network,
        )

    def OnnxParser(self, _network: Any, _logger: Any) -> Any:  # noqa: N802
        return SimpleNamespace(parse=lambda content: bool(onnx.ModelProto.FromString(content).graph.node))

    def Runtime(self, _logger: Any) -> Any:  # noqa: N802
        information = json.dumps({"Layers": self.engine_layers})
        inspector = SimpleNamespace(get_engine_information=lambda _format: information)
        engine = SimpleNamespace(create_engine_inspector=lambda: inspector)
        return SimpleNamespace(deserialize_cuda_engine=lambda _plan: engine)


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TensorRT:
    module = TensorRT()
    cuda = SimpleNamespace(
        open_device=lambda index: Device(index, "NVIDIA H200", 9, 0), free_bytes_of=lambda _index: module.free_bytes
    )
    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.cuda", cuda)
    monkeypatch.setattr(engine_builder, "import_tensorrt", lambda: module)
    monkeypatch.setattr(
        engine_builder, "shared_logger", lambda _trt: SimpleNamespace(errors=module.says, forget=lambda: None)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return module


@pytest.fixture
def model() -> onnx.ModelProto:
    node = helper.make_node("PadfreePool", ["x"], ["y"], name="pool", domain="padfree")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T"]) for name in ("x", "y")]
    return helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))


def test_a_model_beyond_protobufs_limit_goes_through_a_file(
    trt: TensorRT, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[onnx.ModelProto] = []

    def parse_from_file(path: str) -> bool:
        read.append(onnx.load(path))
        return True

    parser = SimpleNamespace(parse_from_file=parse_from_file)
    monkeypatch.setattr(trt, "OnnxParser", lambda *_arguments: parser, raising=False)
    monkeypatch.setattr(network, "MAX_PROTOBUF_BYTES", 10)
    assert network.parse(trt, None, None, model) is parser
    assert read == [model]


def test_a_build_as_it_should_be(trt: TensorRT, model: onnx.ModelProto, tmp_path: Path) -> None:
    built = EngineBuilder(0, TacticOptions(workspace_bytes=1 << 20, optimization_level=2), None).build(model, RANGES)
    assert built.plan == b"the plan"
    assert built.plugin_layers == {"PadfreePool": 1}
    assert trt.network_flags == 1 << 1
    config = trt.config
    assert (config.cleared, config.flags, config.limits) == (["tf32"], [], {"workspace": 1 << 20})
    assert (config.profiling_verbosity, config.builder_optimization_level) == ("detailed", 2)
    assert [profile.shapes for profile in config.profiles] == [{"x": ((1,), (60,), (100,))}]
    cache = tmp_path / "caches" / "padfree" / "timing-tensorrt10.6.0-nvidia-h200-sm90.cache"
    assert cache.read_bytes() == b"timings"
    EngineBuilder(0, TacticOptions(), None).build(model, RANGES)
    assert config.cache == b"timings"


def test_a_model_without_weights_is_parsed_from_its_bytes(
    trt: TensorRT, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parser = SimpleNamespace(parse=lambda content: parsed.append(bytes(content)) or True)
    monkeypatch.setattr(trt, "OnnxParser", lambda *_arguments: parser, raising=False)
    EngineBuilder(0, TacticOptions(), None).build(model, RANGES, content=memoryview(b"all of it"))
    assert parsed == [b"all of it"]


def test_the_parts_of_a_build_are_timed(trt: TensorRT, model: onnx.ModelProto) -> None:
    trt.during_build = lambda: time.sleep(0.05)
    builder = EngineBuilder(0, TacticOptions(), None)
    builder.build(model, RANGES)
    seconds = builder.phases.seconds
    assert list(seconds) == [phases.STARTING, phases.PARSING, phases.BUILDING, phases.CHECKING]
    assert seconds[phases.BUILDING] >= 0.05


@pytest.mark.parametrize("is_apart", [False, True])
def test_weights_that_do_not_fit_are_refused_before_the_build(
    trt: TensorRT, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, is_apart: bool
) -> None:
    """The error names both sizes, before TensorRT reads anything; the weights may lie outside of the message."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1024], bytes(4096), raw=True)
    model.graph.initializer.append(weight)
    content = memoryview(model.SerializeToString()) if is_apart else None
    monkeypatch.setattr(trt, "OnnxParser", None, raising=False)
    trt.free_bytes = 4095
    with pytest.raises(BuildError, match=r"weights take 0\.0 GiB, and GPU 0 \(NVIDIA H200\) has 0\.0 GiB free"):
        EngineBuilder(0, TacticOptions(), None).build(model, RANGES, content=content)


def test_sizes_are_shown_in_gib() -> None:
    device = Device(1, "NVIDIA L4", 8, 9)
    check_room(22 << 30, 22 << 30, device)
    with pytest.raises(BuildError, match=r"weights take 28\.0 GiB, and GPU 1 \(NVIDIA L4\) has 22\.0 GiB free; .*fp8"):
        check_room(28 << 30, 22 << 30, device)


def test_no_timing_cache(trt: TensorRT, model: onnx.ModelProto, tmp_path: Path) -> None:
    EngineBuilder(0, TacticOptions(timing_cache=None), None).build(model, RANGES)
    assert trt.config.cache is None
    assert not (tmp_path / "caches").exists()


def test_weak_typing_takes_flags(trt: TensorRT, model: onnx.ModelProto) -> None:
    builder = EngineBuilder(0, TacticOptions(), None)
    assert builder.has_flag("FP16")
    assert not builder.has_flag("FP12")
    builder.build(model, RANGES, strongly_typed=False, builder_flags=("FP16",))
    assert (trt.network_flags, trt.config.flags) == (0, ["fp16"])


def test_a_failed_build_repeats_what_tensorrt_said(trt: TensorRT, model: onnx.ModelProto) -> None:
    trt.plan = None
    with pytest.raises(BuildError, match=r"built no engine: out of memory; .*lower --max-tokens"):
        EngineBuilder(0, TacticOptions(), None).build(model, RANGES)


def test_a_failed_build_says_what_failed_first(trt: TensorRT, model: onnx.ModelProto) -> None:
    """TensorRT's last message is that configurePlugin failed; the plugin said why in an earlier one."""
    trt.plan = None
    trt.says = ["PadfreeLinear 'up': cannot be measured", "something else", "configurePlugin failed"]
    with pytest.raises(BuildError, match=r": PadfreeLinear 'up': cannot be measured; then configurePlugin failed"):
        EngineBuilder(0, TacticOptions(), None).build(model, RANGES)


def test_an_engine_that_lost_a_plugin_is_refused(trt: TensorRT, model: onnx.ModelProto) -> None:
    trt.engine_layers = ["something else"]
    with pytest.raises(BuildError, match=r"lacks 1 of 1 plugin layers, first pool \(PadfreePool\)"):
        EngineBuilder(0, TacticOptions(), None).build(model, RANGES)


def test_a_cancelled_build_is_an_interrupt(trt: TensorRT, model: onnx.ModelProto) -> None:
    def cancel() -> None:
        def interrupt(*_arguments: Any, **_options: Any) -> Any:
            raise KeyboardInterrupt

        monitor = trt.config.progress_monitor
        monitor.phase_start("Tactics", None, 3)
        progress.update = interrupt  # type: ignore[method-assign]
        assert not monitor.step_complete("Tactics", 0)
        trt.plan = None

    progress = Progress(disable=True)
    trt.during_build = cancel
    with pytest.raises(KeyboardInterrupt):
        EngineBuilder(0, TacticOptions(), progress).build(model, RANGES)


def test_a_machine_where_tensorrt_has_no_builder(trt: TensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_logger: Any) -> Any:
        raise TypeError("factory function returned nullptr")

    monkeypatch.setattr(trt, "Builder", refuse)
    with pytest.raises(BuildError, match=r"cannot create a builder \(out of memory\); run `padfree doctor`"):
        EngineBuilder(0, TacticOptions(), None)
