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
@FUNCTIONS@
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


def result_lines(cmake: CMake, folder: Path, files: list[str], *functions: str, given: str = "") -> list[str]:
    """What functions of PadfreeLibrary.cmake make of a list, one after the other, after the commands `given`."""
    script = folder / "script.cmake"
    text = SCRIPT.replace("@ROOT@", str(ROOT)).replace("@FILES@", " ".join(files))
    text = text.replace("@FUNCTIONS@", "\n".join(f"{function}(files)" for function in functions))
    text = text.replace("@GIVEN@", given)
    script.write_text(text, encoding="utf-8")
    command = [cmake.cmake, "-P", str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.split()


def test_files_of_many_kernels_come_first_and_the_hosts_last(cmake: CMake, tmp_path: Path) -> None:
    assert result_lines(cmake, tmp_path, FILES, "padfree_longest_first") == [
        "plugins/attention/sm90/short_fp16.cu",
        "plugins/linear/sm90/half/chunks_fp16.cu",
        "plugins/attention/mma_fp16.cu",
        "plugins/layer_norm/kernel.cu",
        "plugins/linear/sm90/launch.cu",
        "plugins/pack/kernel.cu",
        "plugins/attention/dispatch.cpp",
    ]


def sources() -> list[str]:
    """The files of kernels."""
    return sorted(str(path) for path in (ROOT / "plugins").rglob("*.cu"))


def test_every_file_stays(cmake: CMake, tmp_path: Path) -> None:
    assert sorted(result_lines(cmake, tmp_path, sources(), "padfree_longest_first")) == sources()


def test_files_that_name_the_element_are_compiled_for_both_types(cmake: CMake, tmp_path: Path) -> None:
    files = result_lines(cmake, tmp_path, sources(), "padfree_both_types")
    copies = [Path(file) for file in files if Path(file).is_relative_to(tmp_path)]
    named = [file for file in sources() if "PADFREE_ELEMENT" in Path(file).read_text("utf-8")]
    assert sorted(set(files) - set(map(str, copies))) == sorted(set(sources()) - set(named))
    assert len(copies) == 2 * len(named)
    assert sum("/sm90/half/" in str(file) for file in copies) >= 10  # those that the order is about have this name
    text = (tmp_path / "elements/linear/sm90/half/pairs_bf16.cu").read_text("utf-8")
    assert text.splitlines() == [
        "#define PADFREE_ELEMENT __nv_bfloat16",
        '#include "linear/sm90/half/pairs.cu"',
        "#undef PADFREE_ELEMENT",
    ]


def compiled_together(cmake: CMake, folder: Path, cores: int, architectures: str) -> tuple[list[str], list[list[str]]]:
    """The files that are compiled alone, and the lines of the others."""
    given = f"set(PADFREE_CORES {cores})\nset(PADFREE_ARCHITECTURES {architectures})\n"
    functions = ("padfree_both_types", "padfree_compile_together")
    files = [Path(file) for file in result_lines(cmake, folder, sources(), *functions, given=given)]
    alone = [str(file) for file in files if not file.is_relative_to(folder / "together")]
    groups = [file.read_text("utf-8").splitlines() for file in files if file.is_relative_to(folder / "together")]
    both = result_lines(cmake, folder, sources(), "padfree_both_types")
    copies = {Path(file).read_text("utf-8"): file for file in both if Path(file).is_relative_to(folder)}
    texts = ["\n".join(lines) + "\n" for lines in groups]
    for file in both:
        is_copy = Path(file).is_relative_to(folder)
        text = Path(file).read_text("utf-8") if is_copy else f'#include "{Path(file).relative_to(ROOT / "plugins")}"\n'
        assert (file in alone) + sum(text in group for group in texts) == 1, file
    assert len(copies) == sum(Path(file).is_relative_to(folder) for file in both)
    assert all(sum(line.startswith("#include") for line in lines) > 1 for lines in groups)
    return alone, groups


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
    assert str(tmp_path / "elements/linear/sm90/half/pairs_fp16.cu") in alone
