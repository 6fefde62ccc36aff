# SPDX-License-Identifier: Apache-2.0
"""Which GPUs device code is compiled for: those of the machine, as a fake driver reports them, all, or a list."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from padfree.contract.architectures import ALL, OF_MAJOR
from padfree.runtime.gpu import device_code

ROOT = Path(__file__).resolve().parents[2]
FIND_GPUS = ROOT / "cmake" / "find_gpus.py"
PROJECT = """
cmake_minimum_required(VERSION 3.28)
project(asked LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "@ROOT@/cmake")
set(PROJECT_SOURCE_DIR "@ROOT@")
include(PadfreePythonPackages)
include(PadfreeArchitectures)
set(PADFREE_CUDA_ARCHITECTURES native CACHE STRING "")
padfree_choose_architectures()
message(STATUS "chosen: [${PADFREE_ARCHITECTURES}]")
"""
DRIVER = """
#include <cstring>
struct Gpu { const char* name; int major, minor; };
static const Gpu gpus[] = {@GPUS@};
static const int count = @COUNT@;
extern "C" {
int cuInit(unsigned) { return count > 0 ? 0 : 100; }
int cuDeviceGetCount(int* found) { *found = count; return 0; }
int cuDeviceGet(int* device, int number) { *device = number; return 0; }
int cuDeviceGetName(char* name, int size, int device) { std::strncpy(name, gpus[device].name, size); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? gpus[device].major : attribute == 76 ? gpus[device].minor : -1;
  return 0;
}
}
"""


@dataclass(frozen=True)
class Gpu:
    name: str
    major: int
    minor: int


L4, H100, T4, B200 = Gpu("NVIDIA L4", 8, 9), Gpu("NVIDIA H100", 9, 0), Gpu("Tesla T4", 7, 5), Gpu("NVIDIA B200", 10, 0)


def driver_of(folder: Path, *gpus: Gpu) -> dict[str, str]:
    """An environment in which libcuda.so.1 is a fake that reports these GPUs."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    listed = ", ".join(f'{{"{gpu.name}", {gpu.major}, {gpu.minor}}}' for gpu in gpus) or '{"", 0, 0}'
    source = folder / "driver.cpp"
    source.write_text(DRIVER.replace("@GPUS@", listed).replace("@COUNT@", str(len(gpus))), encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    kept = {name: value for name, value in os.environ.items() if name != "PADFREE_CUDA_ARCHITECTURES"}
    return {**kept, "LD_LIBRARY_PATH": str(folder)}


def choose(cmake: Any, folder: Path, environment: dict[str, str], *defines: str) -> tuple[list[str] | None, str]:
    """The architectures, None after an error, and CMake's output."""
    (folder / "CMakeLists.txt").write_text(PROJECT.replace("@ROOT@", str(ROOT)), encoding="utf-8")
    switches = [f"-D{define}" for define in (f"Python_EXECUTABLE={sys.executable}", *defines)]
    done = cmake.configure("-S", str(folder), "-B", str(folder / "build"), *switches, env=environment)
    output = " ".join((done.stdout + done.stderr).split())
    match = re.search(r"chosen: \[(.*?)\]", output)
    return (match[1].split(";") if match[1] else []) if match and done.returncode == 0 else None, output


@pytest.mark.parametrize(
    ("gpus", "architectures"),
    [
        ([], []),
        ([L4], ["80"]),
        ([H100, H100], ["90a"]),
        ([H100, L4], ["90a", "80"]),
        ([B200], ["100"]),
        ([Gpu("NVIDIA B300", 10, 3)], ["100"]),
        ([Gpu("NVIDIA GeForce RTX 5090", 12, 0)], ["120"]),
    ],
)
def test_the_gpus_of_this_machine_are_the_default(
    cmake: Any, tmp_path: Path, gpus: list[Gpu], architectures: list[str]
) -> None:
    actual, output = choose(cmake, tmp_path, driver_of(tmp_path, *gpus))
    assert actual == architectures
    for gpu in gpus:
        assert f"GPU: {gpu.name} (compute capability {gpu.major}.{gpu.minor})" in output
    assert ("PADFREE_CUDA_ARCHITECTURES=all compiles for all GPUs" in output) is not gpus


def test_a_gpu_without_kernels_is_named(cmake: Any, tmp_path: Path) -> None:
    actual, output = choose(cmake, tmp_path, driver_of(tmp_path, T4, L4))
    assert actual == ["80"]
    assert "Tesla T4 (compute capability 7.5) is no GPU that padfree has kernels for" in output


@pytest.mark.parametrize(
    ("variable", "define", "architectures"),
    [
        ("all", None, list(ALL)),
        (None, "all", list(ALL)),
        (None, "80;90a", ["80", "90a"]),
        ("80,90", None, ["80", "90a"]),
        ("120", "all", ["120"]),
        ("native", "all", ["80"]),
        (None, "native", ["80"]),
    ],
)
def test_the_environment_variable_goes_before_the_define(
    cmake: Any, tmp_path: Path, variable: str | None, define: str | None, architectures: list[str]
) -> None:
    environment = driver_of(tmp_path, L4)
    if variable is not None:
        environment["PADFREE_CUDA_ARCHITECTURES"] = variable
    defines = [] if define is None else [f"PADFREE_CUDA_ARCHITECTURES={define}"]
    assert choose(cmake, tmp_path, environment, *defines)[0] == architectures


@pytest.mark.parametrize("wanted", ["75", "sm_90", "hopper", "80;no"])
def test_anything_else_is_refused(cmake: Any, tmp_path: Path, wanted: str) -> None:
    actual, output = choose(cmake, tmp_path, {**os.environ, "PADFREE_CUDA_ARCHITECTURES": wanted})
    assert actual is None
    assert f"PADFREE_CUDA_ARCHITECTURES is '{wanted}'; allowed: native" in output


def test_all_is_what_the_runtime_knows() -> None:
    module = (ROOT / "cmake" / "PadfreeArchitectures.cmake").read_text("utf-8")
    listed = re.search(r"set\(PADFREE_ALL_ARCHITECTURES ([\w ]+)\)", module)
    assert listed is not None
    assert listed[1].split() == list(ALL) == list(OF_MAJOR.values())


def test_what_publishes_wheels_compiles_for_all() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.search(r"\[tool\.cibuildwheel\.linux\].*-DPADFREE_CUDA_ARCHITECTURES=all", project, re.DOTALL)


@pytest.mark.slow
def test_without_a_gpu_a_library_is_built_that_has_no_device_code(cmake: Any, tmp_path: Path) -> None:
    """The C++ compiler alone builds it; the runtime sees from the file that there is no device code."""
    environment = {**driver_of(tmp_path), "CUDACXX": "/nowhere/nvcc"}
    done = cmake.configure("-S", str(ROOT), "-B", str(tmp_path / "build"), env=environment)
    info = json.loads((tmp_path / "build" / "build_info.json").read_text("utf-8"))
    if not info["built"]:
        pytest.skip(f"cannot be built here: {'; '.join(info['missing'])}")
    assert done.returncode == 0, done.stderr
    assert info["architectures"] == []
    subprocess.run([cmake.cmake, "--build", str(tmp_path / "build"), "--target", "padfree"], check=True, timeout=600)
    library = tmp_path / "build" / "libpadfree.so"
    assert library.stat().st_size < 2**20
    assert device_code.architectures(library) == ()


def test_the_script_runs_before_anything_is_installed() -> None:
    """It runs in a bare interpreter, whatever GPUs there are."""
    done = subprocess.run([sys.executable, "-I", "-S", str(FIND_GPUS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(re.fullmatch(r"(-|\d+a?) \d+\.\d .+", line) for line in done.stdout.splitlines())


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = runpy.run_path(str(FIND_GPUS))
    monkeypatch.setitem(module["gpus"].__globals__, "DRIVER", "libcuda-that-is-not-there.so")
    assert list(module["gpus"]()) == []
