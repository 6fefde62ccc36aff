# SPDX-License-Identifier: Apache-2.0
"""What messages say next after a refusal of CUDA."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native_headers import headers
from tests.support.pages import ROOT

PROGRAM = """
#include <cstdio>
#include "shell/device_code.h"
extern "C" const char* cudaGetErrorString(cudaError_t) { return "refused"; }
int main() {
  std::puts(padfree::nextStepOf(cudaErrorInvalidValue));
  std::puts(padfree::nextStepOf(cudaErrorCallRequiresNewerDriver));
  std::puts(padfree::nextStepOf(cudaErrorNoKernelImageForDevice));
}
"""


def test_a_driver_without_tensor_maps_is_named(tmp_path: Path) -> None:
    compiler, folders = shutil.which("g++"), headers()
    if compiler is None or folders is None:
        pytest.skip("needs g++, TensorRT's and CUDA's headers: apt-get install g++ cargo && pip install '.[dev]'")
    (tmp_path / "main.cpp").write_text(PROGRAM)
    include = [f"-I{folder}" for folder in (ROOT / "plugins", folders[1])]
    sources = [str(tmp_path / "main.cpp"), str(ROOT / "plugins" / "shell" / "device_code.cpp")]
    subprocess.run([compiler, "-std=c++17", *include, *sources, "-o", str(tmp_path / "main")], check=True, timeout=120)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "; a size is beyond what the kernel takes: use smaller batches"
    assert "cuTensorMapEncodeTiled, which the driver lacks: install a driver of CUDA 12.0 or later" in lines[1]
    assert lines[2:] == [""]
