# SPDX-License-Identifier: Apache-2.0
"""Everything in a build that comes before and after TensorRT."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import onnx_graphsurgeon as gs
import pytest
from padfree.builder import BuildError, build_engine
from padfree.builder.cli import main
from padfree.builder.cli.build import CUDA_THREAD, start_cuda
from padfree.builder.engine import build
from padfree.builder.engine.engine_builder import BuiltEngine, EngineBuilder, TacticOptions
from padfree.builder.engine.linear import linear_of
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.phases import STARTING, Phases
from padfree.builder.engine.plan_writing import write_plan
from padfree.builder.engine.preparation import check_rewritten
from padfree.builder.engine.profile import ProfileOptions
from padfree.runtime import Profile, SessionError
from padfree.runtime.gpu.device import Device
from padfree.runtime.plan_files import open_plan

from tests.support.libraries import write_library
from tests.support.preparation import prepare_model

BERT = Path(__file__).resolve().parents[3] / "builder" / "demo" / "data" / "bert_tiny.onnx"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ModelWriter = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def test_a_rewritten_model_keeps_interface_and_precision(packed_model: ModelWriter) -> None:
    model = onnx.load(str(packed_model()))
    check_rewritten(model, BuildOptions("packed", "fp32"))
    for option, value in (("interface", "padded"), ("precision", "fp16"), ("masks", "contiguous")):
        with pytest.raises(BuildError, match=f"{value} was asked for; leave --{option} out"):
            check_rewritten(model, BuildOptions.of_keywords(**{option: value}))


def test_the_callers_model_is_not_changed(packed_model: ModelWriter) -> None:
    model = onnx.load(str(packed_model()))
    before = model.SerializeToString(deterministic=True)
    rewritten = prepare_model(model, BuildOptions(profile=ProfileOptions(max_seq_len=8)), lambda: None)
    rewritten.graph.node[0].name = "changed"
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_a_model_becomes_a_graph_once(monkeypatch: pytest.MonkeyPatch, interface: str) -> None:
    conversions, convert = [], gs.import_onnx
    monkeypatch.setattr(gs, "import_onnx", lambda model: conversions.append(model) or convert(model))
    options = BuildOptions(interface, "fp16", verify=False, profile=ProfileOptions(max_seq_len=8))
    half = FIXTURES / "families" / "bert_dynamo18_eager_fp16_own_mask_gelu_types.onnx"
    model = prepare_model(half, options, lambda: Device(0, "NVIDIA H200", 9, 0))
    assert linear_of(model) == "padfree"
    assert {value.type.tensor_type.elem_type for value in model.graph.output} == {onnx.TensorProto.FLOAT16}
    assert len(conversions) == 1


def test_damaged_metadata_in_a_model(packed_model: ModelWriter) -> None:
    model = onnx.load(str(packed_model()))
    model.metadata_props[0].value = '{"format": 1'
    with pytest.raises(BuildError, match="the model's padfree metadata is damaged"):
        build_engine(model, "model.plan")


def test_cuda_is_not_started_without_its_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.delitem(sys.modules, "padfree.runtime.gpu.cuda", raising=False)
    before = set(threading.enumerate())
    start_cuda(0)
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end meanwhile
    assert "padfree.runtime.gpu.cuda" not in sys.modules  # the build finds the same error again


def test_cuda_starts_in_a_thread_that_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in that thread are ignored."""
    started, may_go = list[tuple[int, str]](), threading.Event()

    def open_device(device: int) -> None:
        may_go.wait()
        started.append((device, threading.current_thread().name))
        raise SessionError("no GPU")

    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.cuda", SimpleNamespace(open_device=open_device))
    start_cuda(3)
    thread = next(thread for thread in threading.enumerate() if thread.name == CUDA_THREAD)
    monkeypatch.setattr("builtins.__import__", refuse_in(thread, builtins.__import__))
    may_go.set()
    thread.join()
    assert started == [(3, CUDA_THREAD)]


def refuse_in(thread: threading.Thread, real: Callable[..., Any]) -> Callable[..., Any]:
    """An __import__ that the given thread may not call."""

    def imports(*arguments: Any, **named: Any) -> Any:
        assert threading.current_thread() is not thread
        return real(*arguments, **named)

    return imports


def test_a_contradicting_profile_is_named_on_any_machine(
    packed_model: ModelWriter, tmp_path: Path, capsys: Capture
) -> None:
    plan = tmp_path / "model.plan"
    assert main(["build", str(packed_model()), "-o", str(plan), "--max-seq-len", "600"]) == 1
    assert "profile max 600 > model limit 16 for 'input_ids'; pass --max-seq-len 16" in capsys.readouterr().err
    assert not plan.exists()


def test_everything_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> Callable[..., None]:
        def raise_it(*_arguments: object) -> None:
            raise SessionError(text)

        return raise_it

    monkeypatch.setattr(build, "no_gpu", lambda: "")  # else the error would name the missing GPU alone
    monkeypatch.setattr(build, "import_tensorrt", refuse("no TensorRT; pip install it"))
    monkeypatch.setattr(build, "open_gpu", refuse("no GPU; buy one"))
    monkeypatch.setattr(build.plugin_library, "find", refuse("no library; apt-get install g++"))
    with pytest.raises(BuildError) as caught:
        build.check_machine(0, operators=("PadfreePool",))
    for part in ("no TensorRT; pip install it", "no GPU; buy one", "no library; apt-get install g++"):
        assert part in str(caught.value)
    with pytest.raises(BuildError) as caught:
        build.check_machine(0, operators=())
    assert "no library" not in str(caught.value)


def test_a_library_without_code_for_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", "90a")))
    monkeypatch.setattr(build, "import_tensorrt", lambda: None)
    monkeypatch.setattr(build, "open_gpu", lambda _number: Device(0, "NVIDIA L4", 8, 9))
    monkeypatch.setattr(build.plugin_library, "require", lambda _operators: None)
    match = r"NVIDIA L4 \(compute capability 8\.9\) needs code for 80.*CUDA_ARCHITECTURES='90a;80' pip install \."
    with pytest.raises(BuildError, match=match):
        build.check_machine(0, operators=("PadfreePool",))
    build.check_machine(0, operators=())


def test_the_builder_effort_is_checked_before_tensorrt() -> None:
    with pytest.raises(BuildError, match=r"optimization level 6, allowed: 0\.\.5"):
        EngineBuilder(0, TacticOptions(optimization_level=6), None)


def test_a_plan_and_its_metadata_belong_together(packed_metadata: dict[str, Any], tmp_path: Path) -> None:
    phases = Phases()
    with phases.measure(STARTING):
        pass
    machine = SimpleNamespace(tensorrt_version="10.6.0", device=Device(0, "NVIDIA H200", 9, 0), phases=phases)
    profile = Profile(1, 5, 10, 2, 8)
    built = BuiltEngine(b"a plan", {"PadfreePool": 1})
    path = tmp_path / "model.plan"
    chosen = {"linear": "padfree", "norms": "folded"}
    written = write_plan(path, built, packed_metadata, profile, cast(EngineBuilder, machine), chosen)
    metadata = open_plan(path)
    assert metadata.raw == written
    assert metadata.engine is not None
    assert (written["engine"]["linear"], written["engine"]["norms"]) == ("padfree", "folded")
    assert written["engine"]["build_seconds"] == {STARTING: pytest.approx(0, abs=1)}
    assert metadata.engine.profile == profile
    assert metadata.engine.gpu_name == "NVIDIA H200"
    assert dict(metadata.engine.plugin_layers) == {"PadfreePool": 1}
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.plan", "model.plan.json"]


@pytest.mark.parametrize("content", [b"not an onnx file", b""])
def test_files_that_are_no_models(tmp_path: Path, capsys: Capture, content: bytes) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(content)
    for command, name in (("build", "out.plan"), ("optimize", "out.onnx")):
        out = tmp_path / name
        assert main([command, str(model), "-o", str(out)]) == 1
        error = capsys.readouterr().err
        assert str(model) in error
        assert "Traceback" not in error
        assert not out.exists()


def test_what_the_machine_lacks_is_said_before_a_model_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Errors in the file itself are reported even earlier."""
    model, broken = BERT, tmp_path / "broken.onnx"
    broken.write_bytes(model.read_bytes()[:100_000])
    missing = SessionError("TensorRT is not installed")

    def refuse(*_: object, **__: object) -> None:
        raise BuildError("engines cannot be built here")

    monkeypatch.setattr("padfree.builder.engine.shared_builder.start", lambda *_: missing)
    monkeypatch.setattr("padfree.builder.engine.build.check_machine", refuse)
    for file, said in ((model, "engines cannot be built here"), (broken, "broken.onnx")):
        assert main(["build", str(file), "-o", str(tmp_path / "model.plan")]) == 1
        shown = capsys.readouterr().err
        assert said in shown
        assert "rewriting the graph" not in shown
