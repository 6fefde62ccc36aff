# SPDX-License-Identifier: Apache-2.0
"""The order in which files are compiled, so that no core is left with a long one, and which are compiled as one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .conftest import CMake

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
set(PROJECT_SOURCE_DIR "@ROOT@")
include("@ROOT@/cmake/PadfreeLibrary.cmake")
set(files @FILES@)
@FUNCTION@(files)
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


def result_lines(cmake: CMake, folder: Path, files: list[str], function: str = "padfree_longest_first") -> list[str]:
    """What a function of PadfreeLibrary.cmake makes of a list."""
    script = folder / "script.cmake"
    text = SCRIPT.replace("@ROOT@", str(ROOT)).replace("@FILES@", " ".join(files)).replace("@FUNCTION@", function)
    script.write_text(text, encoding="utf-8")
    command = [cmake.cmake, "-P", str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.split()


def test_files_of_many_kernels_come_first_and_the_hosts_last(cmake: CMake, tmp_path: Path) -> None:
    assert result_lines(cmake, tmp_path, FILES) == [
        "plugins/linear/sm90/half/chunks_fp16.cu",
        "plugins/attention/sm90/short_fp16.cu",
        "plugins/attention/mma_fp16.cu",
        "plugins/layer_norm/kernel.cu",
        "plugins/linear/sm90/launch.cu",
        "plugins/pack/kernel.cu",
        "plugins/attention/dispatch.cpp",
    ]


def test_every_file_stays(cmake: CMake, tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "plugins").rglob("*.cu"))
    assert sorted(result_lines(cmake, tmp_path, files)) == files
    assert sum("/sm90/half/" in file for file in files) >= 10  # the files that the order is about still have this name


def test_files_of_a_group_are_compiled_as_one(cmake: CMake, tmp_path: Path) -> None:
    files = sorted(str(path) for path in (ROOT / "plugins").rglob("*.cu"))
    sources = [Path(file) for file in result_lines(cmake, tmp_path, files, "padfree_compile_together")]
    alone = [str(file) for file in sources if not file.is_relative_to(tmp_path)]
    groups = [file.read_text("utf-8").splitlines() for file in sources if file.is_relative_to(tmp_path)]
    together = [str(ROOT / "plugins" / line.split('"')[1]) for lines in groups for line in lines]
    assert sorted(alone + together) == files
    assert len(groups) == 9
    assert all(len(lines) > 1 for lines in groups)  # each pattern still matches its files
