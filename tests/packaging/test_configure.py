# SPDX-License-Identifier: Apache-2.0
"""What the build does when something it needs is missing, too old or misnamed; nothing is compiled."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

ALL = "PADFREE_CUDA_ARCHITECTURES=all"  # whatever GPUs this machine has
Configure = Callable[..., "ConfigureResult"]


@dataclass(frozen=True)
class ConfigureResult:
    """Outcome of one `cmake` run on the repository."""

    status: int
    output: str
    info: dict[str, Any] | None


def executable(path: Path, text: str) -> Path:
    """Writes a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def nvcc(path: Path, version: str) -> Path:
    """Writes an nvcc that reports its version and fails at everything else."""
    release = ".".join(version.split(".")[:2])
    banner = f"Cuda compilation tools, release {release}, V{version}"
    return executable(path, f'case "$1" in --version) echo "{banner}" ;; *) exit 1 ;; esac')


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """As much of TensorRT 10.6.0 as the build looks at."""
    include = tmp_path / "TensorRT" / "include"
    include.mkdir(parents=True)
    lines = ["#define NV_TENSORRT_MAJOR 10", "#define NV_TENSORRT_MINOR 6", "#define NV_TENSORRT_PATCH 0"]
    (include / "NvInferVersion.h").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return include.parent


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without a compiler, cargo or Python packages."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYTHONNOUSERSITE": "1"}


@pytest.fixture
def configure(tmp_path: Path, cmake: Any) -> Configure:
    """Configures the repository into a fresh folder, with this environment and these defines."""

    def run(environment: dict[str, str], *defines: str) -> ConfigureResult:
        python = executable(tmp_path / "python", f'exec "{sys.executable}" -S "$@"')  # -S: no site-packages
        switches = [f"Python_EXECUTABLE={python}", "CMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", ALL, *defines]
        folders = ["-S", str(ROOT), "-B", str(tmp_path / "build")]
        done = cmake.configure(*folders, *(f"-D{switch}" for switch in switches), env=environment)
        info = tmp_path / "build" / "build_info.json"
        loaded = json.loads(info.read_text(encoding="utf-8")) if info.exists() else None
        return ConfigureResult(done.returncode, " ".join((done.stdout + done.stderr).split()), loaded)

    return run


def test_without_any_tool_the_python_part_installs_and_says_what_is_missing(
    configure: Configure, bare: dict[str, str]
) -> None:
    result = configure(bare)
    assert result.status == 0, result.output
    assert result.info is not None
    assert result.info["built"] is False
    assert len(result.info["missing"]) == len(result.info["next_steps"])
    for what, step in [
        ("C++ compiler", "g++"),
        ("nvcc", "CUDACXX"),
        ("TensorRT headers", "cargo"),
    ]:
        index = next(i for i, text in enumerate(result.info["missing"]) if what in text)
        assert step in result.info["next_steps"][index]
        assert result.info["missing"][index] in result.output


def test_forced_on_a_missing_tool_is_an_error(configure: Configure, bare: dict[str, str]) -> None:
    result = configure(bare, "PADFREE_BUILD_PLUGINS=ON")
    assert result.status != 0
    assert result.info is None
    assert "no C++ compiler" in result.output
    assert "Next step" in result.output


def test_forced_off_nothing_is_looked_for(configure: Configure, bare: dict[str, str]) -> None:
    result = configure({**bare, "CUDACXX": "/nowhere/nvcc"}, "PADFREE_BUILD_PLUGINS=OFF")
    assert result.status == 0, result.output
    assert result.info is not None
    assert result.info["built"] is False
    assert "PADFREE_BUILD_PLUGINS=OFF" in result.info["missing"][0]


def test_an_unknown_switch_is_refused(configure: Configure, bare: dict[str, str]) -> None:
    result = configure(bare, "PADFREE_BUILD_PLUGINS=MAYBE")
    assert result.status != 0
    assert "'MAYBE'; allowed: AUTO, ON, OFF" in result.output


@pytest.mark.parametrize("variable", ["CUDACXX", "CUDA_HOME"])
def test_an_old_nvcc_that_the_user_named_is_an_error(
    configure: Configure, tmp_path: Path, bare: dict[str, str], variable: str
) -> None:
    old = nvcc(tmp_path / "cuda" / "bin" / "nvcc", "12.2.140")
    named = old if variable == "CUDACXX" else old.parent.parent
    result = configure({**bare, variable: str(named)})
    assert result.status != 0
    assert f"nvcc 12.2.140 ('{old}', from {variable}) is older than 12.4" in result.output


def test_a_named_nvcc_that_does_not_run_is_an_error(configure: Configure, bare: dict[str, str]) -> None:
    result = configure({**bare, "CUDACXX": "/nowhere/nvcc"})
    assert result.status != 0
    assert "CUDACXX names '/nowhere/nvcc', which does not run as nvcc" in result.output


def test_cudacxx_goes_before_cuda_home(configure: Configure, tmp_path: Path, bare: dict[str, str]) -> None:
    first = nvcc(tmp_path / "first" / "nvcc", "11.8.89")
    nvcc(tmp_path / "second" / "bin" / "nvcc", "12.6.20")
    result = configure({**bare, "CUDACXX": str(first), "CUDA_HOME": str(tmp_path / "second")})
    assert "nvcc 11.8.89" in result.output


@pytest.mark.parametrize(("version", "warned"), [("12.4.131", True), ("12.8.93", False)])
def test_an_nvcc_before_12_8_drops_hopper_and_blackwell_with_a_warning(
    configure: Configure, tmp_path: Path, bare: dict[str, str], version: str, warned: bool
) -> None:
    compiler = nvcc(tmp_path / "cuda" / "bin" / "nvcc", version)
    result = configure({**bare, "CUDACXX": str(compiler)})
    assert result.status == 0, result.output
    assert ("is built for 80 and not for 80;90a;100;120" in result.output) is warned


@pytest.mark.parametrize("wanted", ["90a", "120"])
def test_an_nvcc_before_12_8_is_an_error_where_they_alone_are_wanted(
    configure: Configure, tmp_path: Path, bare: dict[str, str], wanted: str
) -> None:
    compiler = nvcc(tmp_path / "cuda" / "bin" / "nvcc", "12.4.131")
    result = configure({**bare, "CUDACXX": str(compiler)}, f"PADFREE_CUDA_ARCHITECTURES={wanted}")
    assert result.status != 0
    assert f"does not compile for Hopper and Blackwell ({wanted}); name one >= 12.8 by CUDACXX" in result.output


def test_headers_of_an_installed_tensorrt_go_first(configure: Configure, bare: dict[str, str], headers: Path) -> None:
    result = configure({**bare, "TENSORRT_ROOT": str(headers)})
    assert "TensorRT headers: 10.6.0 (installed)" in result.output
    assert result.info is not None
    assert not any("headers (" in text for text in result.info["missing"])


def test_a_wrong_tensorrt_root_is_an_error(configure: Configure, tmp_path: Path, bare: dict[str, str]) -> None:
    result = configure({**bare, "TENSORRT_ROOT": str(tmp_path / "nowhere")})
    assert result.status != 0
    assert f"TENSORRT_ROOT is '{tmp_path / 'nowhere'}'" in result.output


def test_a_cargo_that_fails_is_told(configure: Configure, bare: dict[str, str]) -> None:
    executable(Path(bare["PATH"]) / "cargo", "echo 'error: no network' >&2; exit 101")
    result = configure(bare)
    assert result.status == 0, result.output
    assert result.info is not None
    assert "error: no network" in result.output
    assert any("cargo could not fetch trtx-sys 0.9.1" in text for text in result.info["missing"])


def test_a_crate_with_other_contents_is_refused(configure: Configure, tmp_path: Path, bare: dict[str, str]) -> None:
    crate = tmp_path / "build" / "trt_headers" / "vendor" / "trtx-sys-0.9.1+rtx1.7"
    crate.mkdir(parents=True)
    (crate / ".cargo-checksum.json").write_text(json.dumps({"package": "0" * 64}), encoding="utf-8")
    result = configure(bare)
    assert result.status != 0
    assert f"SHA-256 {'0' * 64}; expected" in result.output


@pytest.mark.slow
def test_a_host_compiler_that_nvcc_refuses_is_told(configure: Configure, tmp_path: Path, headers: Path) -> None:
    compiler = nvcc(tmp_path / "cuda" / "bin" / "nvcc", "13.0.88")
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    paths = {"TENSORRT_ROOT": str(headers), "CUDACXX": str(compiler)}
    result = configure({**os.environ, **paths})
    assert result.status == 0, result.output
    assert result.info is not None
    assert result.info["missing"] == [f"nvcc 13.0.88 does not work with the C++ compiler {shutil.which('c++')}"]
