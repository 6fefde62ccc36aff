# SPDX-License-Identifier: Apache-2.0
"""What `padfree doctor` finds on machines of other kinds than this one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.builder import doctor, gpu_files
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.doctor import Finding, capabilities
from padfree.runtime import SessionError
from padfree.runtime.gpu.device import Device

from tests.support.libraries import write_library

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for padfree.runtime.gpu.cuda on a machine with one H200 and a driver for CUDA 12.8."""
    module = SimpleNamespace(
        device_count=lambda: 1,
        open_device=lambda _index: Device(0, "NVIDIA H200", 9, 0),
        driver_version=lambda: 12080,
    )
    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.cuda", module)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda _fields: "")
    return module


def build_info(monkeypatch: pytest.MonkeyPatch, **info: Any) -> None:
    monkeypatch.setattr(doctor.plugin_library, "read_build_info", lambda: info)


@pytest.mark.usefixtures("cuda")
def test_a_good_gpu() -> None:
    assert doctor.find_gpu() == Finding("gpu", "ok", "1 x NVIDIA H200, compute capability 9.0")


def test_an_old_gpu_is_a_problem(cuda: SimpleNamespace) -> None:
    def refuse(_index: int) -> Device:
        raise SessionError("GPU 0 (Tesla T4) has compute capability 7.5")

    cuda.open_device = refuse
    assert doctor.find_gpu().state == "problem"
    assert "Tesla T4" in doctor.find_gpu().detail


def test_a_gpu_that_cuda_cannot_use_is_a_problem(cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.device_count = lambda: 0
    assert doctor.find_gpu().state == "missing"
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda _fields: "NVIDIA H200, 9.0")
    assert doctor.find_gpu().state == "problem"


@pytest.mark.parametrize("is_there", [False, True])
def test_packages_help_only_where_a_gpu_may_be(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They take 2 GB; nobody should download them only to be told that there is no GPU."""
    control = tmp_path / "nvidiactl"
    monkeypatch.setattr(gpu_files, "DEVICE_FILES", (control,))
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda _fields: "")
    for name in ("cuda", "tensorrt"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "padfree.runtime.gpu.cuda", raising=False)
    if is_there:
        control.touch()
    finding = doctor.find_gpu()
    assert finding.state == "missing"
    assert ("pip install" in finding.next_step) == is_there
    assert ("this machine shows no NVIDIA GPU" in finding.detail) == (not is_there)
    assert main(["build", str(DEMO_DATA / "bert_tiny.onnx"), "-o", str(tmp_path / "model.plan")]) == 1
    beginning = "engines cannot be built here: this machine shows no NVIDIA GPU (there is neither "
    assert (beginning in capsys.readouterr().err) == (not is_there)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("built", "state"), [("12.4", "ok"), ("13.0", "problem"), ("", "ok")])
def test_the_driver_has_to_know_the_librarys_cuda(monkeypatch: pytest.MonkeyPatch, built: str, state: str) -> None:
    build_info(monkeypatch, cuda_version=built)
    finding = doctor.find_driver()
    assert finding.state == state
    assert "CUDA up to 12.8" in finding.detail
    if state == "problem":
        assert "built with CUDA 13.0, which needs driver 580 or newer" in finding.detail
        assert "CUDACXX=/usr/local/cuda-12/bin/nvcc pip install ." in finding.next_step
        cmake = (ROOT / "cmake" / "PadfreeNvcc.cmake").read_text("utf-8")
        oldest = dict(re.findall(r"^set\(PADFREE_NVCC_(MINIMUM|HOPPER) ([\d.]+)\)", cmake, re.MULTILINE))
        assert f"({oldest['HOPPER']} or newer; from {oldest['MINIMUM']} on for GPUs" in finding.next_step
    elif built:
        assert "built with CUDA 12.4, which needs driver 525 or newer" in finding.detail


def test_no_driver(cuda: SimpleNamespace) -> None:
    cuda.driver_version = lambda: 0
    assert doctor.find_driver().state == "missing"


def test_what_the_build_missed_becomes_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADFREE_LIBRARY", raising=False)
    monkeypatch.setattr(doctor.plugin_library, "library_folders", lambda: [tmp_path])
    build_info(monkeypatch, built=False, missing=["no C++ compiler"], next_steps=["apt-get install g++"])
    finding = doctor.find_library()
    assert finding.state == "missing"
    assert "no C++ compiler" in finding.detail
    assert finding.next_step.startswith("apt-get install g++")


@pytest.mark.parametrize(
    ("compiled", "state", "detail", "step"),
    [
        ("80", "problem", "NVIDIA H200 (compute capability 9.0) needs code for 90a", "'80;90a' pip install ."),
        ("", "problem", "this library has no device code", "PADFREE_CUDA_ARCHITECTURES=90a pip install ."),
        ("80,90a", "ok", "(80, 90a; CUDA ", ""),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_the_library_is_compared_with_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: str, state: str, detail: str, step: str
) -> None:
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", compiled)))
    finding = doctor.find_library()
    assert finding.state == state
    assert detail in finding.detail
    assert step in finding.next_step


def test_the_second_gpu_counts_too(cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = [Device(0, "NVIDIA H200", 9, 0), Device(1, "NVIDIA L4", 8, 9)]
    cuda.device_count = lambda: len(gpus)
    cuda.open_device = lambda number: gpus[number]
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", "90a")))
    assert "NVIDIA L4 (compute capability 8.9) needs code for 80" in doctor.find_library().detail


def test_a_library_without_device_code_is_what_a_machine_without_a_gpu_needs(
    cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda.device_count = lambda: 0
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", "")))
    finding = doctor.find_library()
    assert finding.state == "ok"
    assert "no device code" in finding.detail


def test_a_wrong_library_variable_keeps_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADFREE_LIBRARY", "/nowhere/libpadfree.so")
    assert "unset it" in doctor.find_library().next_step


@pytest.mark.parametrize(
    ("code", "error", "state"), [(0, "", "ok"), (1, "Traceback\nOSError: bad ELF", "problem"), (-11, "", "problem")]
)
def test_a_library_that_tensorrt_refuses_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, code: int, error: str, state: str
) -> None:
    for name in ("find_library", "find_tensorrt"):
        monkeypatch.setattr(doctor, name, lambda: Finding("x", "ok", ""))
    result = subprocess.CompletedProcess([], code, "", error)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_arguments, **_options: result)
    finding = doctor.find_registration()
    assert finding.state == state
    assert error.splitlines()[-1:] == [] or error.splitlines()[-1] in finding.detail


def test_the_table_of_words_is_looked_for_where_padfree_is_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PADFREE_LIBRARY may name a plugin library that has no other libraries beside it."""
    alone, installed = tmp_path / "alone/libpadfree.so", tmp_path / "installed/libpadfree_text.so"
    alone.parent.mkdir()
    alone.touch()
    monkeypatch.setenv("PADFREE_LIBRARY", str(alone))
    monkeypatch.setattr(doctor.plugin_library, "library_folders", lambda: [installed.parent])
    missing = doctor.find_word_table()
    assert missing.state == "missing"
    assert str(alone.parent) in missing.detail
    assert str(installed.parent) in missing.detail
    installed.parent.mkdir()
    installed.touch()
    assert doctor.find_word_table() == Finding("tokens", "ok", f"{installed} looks up words of texts")


def test_headers_or_cargo_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def headers() -> Finding:
        return next(finding for finding in doctor.find_build_tools() if finding.name == "headers")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(doctor, "HEADER_FOLDERS", ())
    monkeypatch.delenv("TENSORRT_ROOT", raising=False)
    assert headers().state == "missing"
    assert "cargo" in headers().next_step
    (tmp_path / "cargo").touch(mode=0o755)
    assert headers().state == "ok"
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "NvInferVersion.h").touch()
    monkeypatch.setenv("TENSORRT_ROOT", str(tmp_path))
    assert str(tmp_path / "include") in headers().detail


def test_engines_need_all_of_it() -> None:
    names = ("python", "gpu", "driver", "tensorrt", "library", "registration", "compiler", "nvcc", "headers")
    findings = [Finding(name, "ok", "") for name in names]
    assert all(capabilities(findings).values())
    for at in range(1, 6):
        broken = [*findings[:at], Finding(names[at], "missing", ""), *findings[at + 1 :]]
        works = capabilities(broken)
        assert not works["build and run engines"]
        assert works["run rewritten models on the CPU"]


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a file such as numpy.py; folders that PYTHONPATH names still count."""
    here, named = tmp_path / "here", tmp_path / "named"
    for folder in (here, named):
        folder.mkdir()
        (folder / "planted.py").write_text(f"print({folder.name!r})")
    monkeypatch.chdir(here)
    assert "No module named 'planted'" in doctor.run_python("import planted").stderr
    monkeypatch.setenv("PYTHONPATH", str(named))
    done = doctor.run_python("import planted")
    assert (done.returncode, done.stdout) == (0, "named\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.gguf", b"GGUF", "is a GGUF file, which has weights without the model's graph; name a plan"),
        ("texts.txt", b"a cat", "has no texts.txt.json beside it, as plans have; name a plan"),
        ("model.plan", b"plan", "its metadata model.plan.json is missing"),
        ("model.plan", b"<html>", "is a web page or XML, not a model"),
        ("model.onnx", b"model", "is an .onnx file"),
    ],
)
def test_what_is_named_as_a_plan(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["doctor", "--plan", str(tmp_path / name)]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / name}: {message}" in error
