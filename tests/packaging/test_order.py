# SPDX-License-Identifier: Apache-2.0
"""The order in which files are compiled: at the end no core is left with a file that takes long."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .conftest import CMake

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
include("@ROOT@/cmake/PadfreeLibrary.cmake")
set(files @FILES@)
padfree_longest_first(files)
foreach(file ${files})
  message("${file}")
endforeach()
"""
FILES = [
    "plugins/attention/dispatch.cpp",
    "plugins/attention/mma_fp16.cu",
    "plugins/attention/sm90/short_fp16.cu",
    "plugins/layer_norm/kernel.cu",
    "plugins/linear/sm90/half/chunks_fp16.cu",
    "plugins/linear/sm90/launch.cu",
    "plugins/pack/kernel.cu",
]


def sorted_files(cmake: CMake, folder: Path, files: list[str]) -> list[str]:
    """The order in which padfree_longest_first puts a list."""
    script = folder / "script.cmake"
    script.write_text(SCRIPT.replace("@ROOT@", str(ROOT)).replace("@FILES@", " ".join(files)), encoding="utf-8")
    done = subprocess.run([cmake.cmake, "-P", str(script)], capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.split()


def test_files_of_many_kernels_come_first_and_the_hosts_last(cmake: CMake, tmp_path: Path) -> None:
    assert sorted_files(cmake, tmp_path, FILES) == [
        "plugins/linear/sm90/half/chunks_fp16.cu",
        "plugins/attention/mma_fp16.cu",
        "plugins/attention/sm90/short_fp16.cu",
        "plugins/layer_norm/kernel.cu",
        "plugins/linear/sm90/launch.cu",
        "plugins/pack/kernel.cu",
        "plugins/attention/dispatch.cpp",
    ]


def test_every_file_stays(cmake: CMake, tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "plugins").rglob("*.cu"))
    assert sorted(sorted_files(cmake, tmp_path, files)) == files
    assert sum("/sm90/half/" in file for file in files) >= 10  # the files that the order is about still have this name
