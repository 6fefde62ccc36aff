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
@GIVEN@set(files @FILES@)
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


def result_lines(
    cmake: CMake, folder: Path, files: list[str], function: str = "padfree_longest_first", given: str = ""
) -> list[str]:
    """What a function of PadfreeLibrary.cmake makes of a list, after the commands `given`."""
    script = folder / "script.cmake"
    text = SCRIPT.replace("@ROOT@", str(ROOT)).replace("@FILES@", " ".join(files)).replace("@FUNCTION@", function)
    text = text.replace("@GIVEN@", given)
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


def compiled_together(cmake: CMake, folder: Path, cores: int, architectures: str) -> tuple[list[str], list[list[str]]]:
    """The files that are compiled alone, and the groups of the others."""
    files = sorted(str(path) for path in (ROOT / "plugins").rglob("*.cu"))
    given = f"set(PADFREE_CORES {cores})\nset(PADFREE_ARCHITECTURES {architectures})\n"
    sources = [Path(file) for file in result_lines(cmake, folder, files, "padfree_compile_together", given)]
    alone = [str(file) for file in sources if not file.is_relative_to(folder)]
    groups = [file.read_text("utf-8").splitlines() for file in sources if file.is_relative_to(folder)]
    together = [[str(ROOT / "plugins" / line.split('"')[1]) for line in lines] for lines in groups]
    assert sorted([*alone, *(file for group in together for file in group)]) == files
    assert all(len(group) > 1 for group in together)
    return alone, together


def test_files_of_a_group_are_compiled_as_one(cmake: CMake, tmp_path: Path) -> None:
    _, groups = compiled_together(cmake, tmp_path, 16, "90a")
    assert len(groups) == 11


def test_on_few_cores_kinds_and_both_types_of_a_kernel_are_compiled_as_one(cmake: CMake, tmp_path: Path) -> None:
    alone, groups = compiled_together(cmake, tmp_path, 2, "90a")
    assert len(groups) == 17
    assert not [file for file in alone if "/sm90/" in file]


def test_for_several_architectures_long_files_stay_apart(cmake: CMake, tmp_path: Path) -> None:
    alone, groups = compiled_together(cmake, tmp_path, 2, "80;90a")
    assert len(groups) == 11
    assert str(ROOT / "plugins/linear/sm90/half/pairs_fp16.cu") in alone
