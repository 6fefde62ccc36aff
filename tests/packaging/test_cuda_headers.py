# SPDX-License-Identifier: Apache-2.0
"""Which folder with CUDA's headers is used: a complete one, because NVIDIA splits the headers over several packages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
cmake_minimum_required(VERSION 3.28)
project(asked LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "@ROOT@/cmake")
macro(padfree_missing what next_step)
  message(STATUS "missing: ${what}; ${next_step}")
endmacro()
include(PadfreeCudaHeaders)
padfree_find_cuda_headers()
message(STATUS "chosen: [${PADFREE_CUDA_INCLUDE}]")
"""


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["cuda_bf16.h", "nv/target"], ["include"]),
        (["cuda_bf16.h", "cccl/nv/target"], ["include", "include/cccl"]),
        (["cuda_bf16.h"], []),
        (["nv/target"], []),
    ],
    ids=["package", "toolkit 13", "without cccl", "cccl alone"],
)
def test_headers_are_whole(cmake: Any, tmp_path: Path, files: list[str], folders: list[str]) -> None:
    if Path("/usr/local/cuda/include/cuda_bf16.h").exists():
        pytest.skip("a toolkit in /usr/local/cuda comes after those of the test: run it where there is none")
    for name in files:
        path = tmp_path / "cuda" / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.replace("@ROOT@", str(ROOT)), encoding="utf-8")
    done = cmake.configure(
        *("-S", str(tmp_path), "-B", str(tmp_path / "build"), "-DPython_EXECUTABLE=/nowhere/python"),
        env={**os.environ, "CUDA_HOME": str(tmp_path / "cuda")},
    )
    chosen = re.search(r"chosen: \[(.*?)\]", done.stdout)
    assert chosen is not None, done.stderr
    assert chosen[1] == ";".join(str(tmp_path / "cuda" / folder) for folder in folders)
    assert ("missing" in done.stdout) is (not folders)
