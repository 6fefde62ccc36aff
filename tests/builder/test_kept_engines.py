# SPDX-License-Identifier: Apache-2.0
"""padfree.Model on a machine with a GPU: engines are built once, kept, and found again by what they were made from."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import padfree
import pytest
from padfree.builder import kept_engines
from padfree.builder import model as model_module
from padfree.builder.errors import BuildError
from padfree.builder.folders.head import HeadOptions
from padfree.builder.kept_engines import EngineOptions, kept_engine
from padfree.runtime import SessionError
from padfree.runtime.gpu.device import Device
from padfree.runtime.plan_files import open_plan

from tests.support.fake_builder import FakeBuilder, fake_builder
from tests.support.folders import ENCODER, TOKENIZER, WIDTH, write_folder

GPU = Device(0, "NVIDIA H200", 9, 0)
PLAIN = EngineOptions(HeadOptions(), "fp32", verify=False)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeBuilder]:
    """A machine with a GPU, whose builder builds nothing."""
    library = tmp_path / "libpadfree.so"
    library.write_bytes(b"library")
    monkeypatch.setattr(kept_engines, "open_gpu", lambda _: GPU)
    monkeypatch.setattr(kept_engines, "check_machine", lambda *_, **__: None)
    monkeypatch.setattr(kept_engines.plugin_library, "find", lambda: library)
    monkeypatch.setattr(kept_engines, "import_tensorrt", lambda: type("trt", (), {"__version__": "10.6.0"}))
    return fake_builder(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "encoder", modules=[("Pooling", {"pooling_mode": "mean"})], max_seq_length=9)


def plan_of(model: Path, cache: Path, options: EngineOptions = PLAIN) -> Path:
    with kept_engine(model, options, device=0, folder=cache) as plan:
        open_plan(plan)
        return plan


def test_an_engine_is_built_once(
    builder: type[FakeBuilder], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = plan_of(folder, tmp_path / "cache")
    assert f"{folder}: building an engine for {GPU.name}, once; it is kept in {first.parent}" in caplog.text
    caplog.clear()
    assert plan_of(folder, tmp_path / "cache") == first
    assert len(builder.built) == 1
    assert not caplog.records
    assert first.parent.name.startswith("encoder-")
    assert first.with_name("model.plan.tokenizer.json").read_bytes() == TOKENIZER.read_bytes()


@pytest.mark.slow
def test_what_it_was_made_of_tells_engines_apart(
    builder: type[FakeBuilder], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files' content, options, versions, library and GPU count; files' times and files outside the model do not."""
    cache = tmp_path / "cache"
    plans = [plan_of(folder, cache)]
    copied = tmp_path / "copy" / "encoder"
    shutil.copytree(folder, copied)
    (copied / "README.md").write_text("Other words.")
    assert plan_of(copied, cache) == plans[0]

    pooling = next(copied.glob("*Pooling/config.json"))
    pooling.write_text(pooling.read_text().replace("mean", "max"))
    plans.append(plan_of(copied, cache))
    plans.append(plan_of(folder, cache, EngineOptions(HeadOptions(("cls",)), "fp32", verify=False)))
    plans.append(plan_of(folder, cache, EngineOptions(HeadOptions(), "fp16", verify=False)))
    with monkeypatch.context() as other:
        other.setattr(kept_engines, "open_gpu", lambda _: Device(0, "NVIDIA L4", 8, 9))
        plans.append(plan_of(folder, cache))
    with monkeypatch.context() as other:
        other.setattr(kept_engines, "import_tensorrt", lambda: type("trt", (), {"__version__": "11.2.1"}))
        plans.append(plan_of(folder, cache))
    (tmp_path / "libpadfree.so").write_bytes(b"another library")
    plans.append(plan_of(folder, cache))
    assert len(set(plans)) == len(plans) == len(builder.built)


def test_a_file_and_its_weights(builder: type[FakeBuilder], tmp_path: Path) -> None:
    import onnx

    model = onnx.load(ENCODER)
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1024)
    first = plan_of(tmp_path / "m.onnx", tmp_path / "cache")
    assert plan_of(tmp_path / "m.onnx", tmp_path / "cache") == first
    content = bytearray((tmp_path / "m.data").read_bytes())
    content[100:104] = b"\x00\x00\x80\x3f"
    (tmp_path / "m.data").write_bytes(content)
    assert plan_of(tmp_path / "m.onnx", tmp_path / "cache") != first
    assert len(builder.built) == 2


def test_a_damaged_engine_is_built_anew(
    builder: type[FakeBuilder], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(folder, tmp_path / "cache")
    plan.write_bytes(plan.read_bytes()[:-1] + b"?")
    assert plan_of(folder, tmp_path / "cache") == plan
    assert "it is built anew" in caplog.text
    assert len(builder.built) == 2
    plan.with_name("model.plan.json").unlink()
    assert plan_of(folder, tmp_path / "cache") == plan
    assert len(builder.built) == 3


def test_a_failed_build_keeps_nothing(
    builder: type[FakeBuilder], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "fails_at", 1)
    with pytest.raises(BuildError, match="TensorRT built no engine"):
        plan_of(folder, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.plan*"))
    plan_of(folder, tmp_path / "cache")


def test_where_nothing_can_be_kept(
    builder: type[FakeBuilder], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with kept_engine(folder, PLAIN, device=0, folder=tmp_path / "file") as plan:
        open_plan(plan)
        assert "which cannot be kept" in caplog.text
    assert not plan.exists()
    assert len(builder.built) == 1


class Session:
    """Raises an error that names what would run."""

    def __init__(self, path: Path, **_: Any) -> None:
        raise SessionError(f"opened {path.name} beside {path.parent.name}")


@pytest.mark.parametrize(
    ("backend", "opened"), [("auto", "model.plan"), ("tensorrt", "model.plan"), ("onnxruntime", ".onnx")]
)
def test_models_run_on_the_gpu_where_there_is_one(
    backend: str,
    opened: str,
    builder: type[FakeBuilder],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_module, "Session", Session)
    with pytest.raises(SessionError, match=opened):
        padfree.Model(folder, backend=backend, precision=None if backend == "onnxruntime" else "fp32", verify=False)
    kept = list((tmp_path / "home" / "padfree" / "engines").glob("encoder-*/model.plan"))
    assert len(kept) == len(builder.built) == (backend != "onnxruntime")


def test_a_machine_without_a_gpu_says_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), padfree.Model(folder, verify=False) as model:
        assert model.encode("a day").shape == (WIDTH,)
    assert "GPU" not in caplog.text


def test_a_gpu_that_cannot_be_used_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BuildError("engines cannot be built here: TensorRT is missing: pip install '.[trt]'")

    monkeypatch.setattr(kept_engines, "no_gpu", lambda: "")
    monkeypatch.setattr(kept_engines, "check_machine", refuse)
    with padfree.Model(folder, verify=False) as model:
        assert model.session.metadata.engine is None
    assert "runs on the CPU although there is a GPU: engines cannot be built here: TensorRT is missing" in caplog.text
    with pytest.raises(BuildError, match="TensorRT is missing"):
        padfree.Model(folder, backend="tensorrt")


def test_a_missing_file_is_no_engines_matter(builder: type[FakeBuilder], tmp_path: Path) -> None:
    for name in ("none.plan", "none.onnx"):
        with pytest.raises(SessionError, match=name):
            padfree.Model(tmp_path / name, engines=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert not builder.built


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(BuildError, match="backend is 'cuda', allowed: auto, tensorrt, onnxruntime"):
        padfree.Model(folder, backend="cuda")
    with pytest.raises(BuildError, match="precision fp16 is for engines on a GPU"):
        padfree.Model(folder, backend="onnxruntime", precision="fp16")
