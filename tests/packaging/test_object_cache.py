# SPDX-License-Identifier: Apache-2.0
"""The object cache, used by CMake: a build in a fresh folder reuses objects, and a changed header is never missed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
cmake_minimum_required(VERSION 3.28)
project(cached LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "@ROOT@/cmake")
set(PADFREE_OBJECT_CACHE AUTO CACHE STRING "")
include(PadfreePythonPackages)
include(PadfreeObjectCache)
padfree_use_object_cache()
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/toolchain")
padfree_stable_link(package "$ENV{PACKAGE}" include)
add_executable(answer main.cpp)
target_include_directories(answer PRIVATE "${PROJECT_SOURCE_DIR}" SYSTEM PRIVATE "${include}")
"""
SOURCE = """
#include <cstdio>
#include "local.h"
#include <packaged.h>
int main() { std::printf("%d %d", kLocal, kPackaged); }
"""


@dataclass
class Project:
    """A checkout, a folder of packaged headers and one cache."""

    folder: Path
    package: Path
    cmake: Any
    ccache: str
    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        """The build's environment; the cache belongs to the test."""
        path = os.pathsep.join([str(Path(self.ccache).parent), os.environ["PATH"]])
        own = {"CCACHE_DIR": str(self.cache), "CCACHE_CONFIGPATH": os.devnull, "PACKAGE": str(self.package)}
        return {**os.environ, **own, "PATH": path}

    def write(self, local: int, packaged: int) -> None:
        """Writes the sources; the program prints both numbers."""
        self.folder.mkdir(exist_ok=True)
        self.package.mkdir(exist_ok=True)
        (self.folder / "CMakeLists.txt").write_text(PROJECT.replace("@ROOT@", str(ROOT)), encoding="utf-8")
        (self.folder / "main.cpp").write_text(SOURCE, encoding="utf-8")
        (self.folder / "local.h").write_text(f"constexpr int kLocal = {local};\n", encoding="utf-8")
        (self.package / "packaged.h").write_text(f"constexpr int kPackaged = {packaged};\n", encoding="utf-8")
        # ccache does not trust a file that is as new as the compilation itself.
        for path in [*self.folder.glob("*.*"), *self.package.iterdir()]:
            os.utime(path, (1_700_000_000, 1_700_000_000 + local + 100 * packaged))

    def build(self, *defines: str) -> tuple[str, int]:
        """Builds in a fresh build folder; returns what the program prints, and how many objects came from the cache."""
        build = self.folder / "build"
        shutil.rmtree(build, ignore_errors=True)
        subprocess.run([self.ccache, "--zero-stats"], env=self.environment, check=True, capture_output=True)
        done = self.cmake.configure("-S", str(self.folder), "-B", str(build), *defines, env=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        ninja = [self.cmake.ninja, "-C", str(build), "-j1"]
        subprocess.run(ninja, env=self.environment, check=True, capture_output=True)
        printed = subprocess.run([build / "answer"], check=True, capture_output=True, text=True).stdout
        stats = [self.ccache, "--print-stats"]
        text = subprocess.run(stats, env=self.environment, check=True, capture_output=True, text=True).stdout
        numbers = dict(line.split("\t")[:2] for line in text.splitlines())
        return printed, int(numbers["direct_cache_hit"]) + int(numbers["preprocessed_cache_hit"])


@pytest.fixture
def project(tmp_path: Path, cmake: Any, ccache: str) -> Project:
    """A project with an empty cache."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    result = Project(tmp_path / "checkout", tmp_path / "environment", cmake, ccache, tmp_path / "cache")
    result.write(1, 2)
    return result


def test_a_fresh_folder_and_a_moved_package_reuse_objects(project: Project, tmp_path: Path) -> None:
    assert project.build() == ("1 2", 0)
    project.package = project.package.rename(tmp_path / "another-environment")
    assert project.build() == ("1 2", 1)


def test_another_checkout_reuses_objects(project: Project, tmp_path: Path) -> None:
    assert project.build() == ("1 2", 0)
    shutil.rmtree(project.folder)
    project.folder = tmp_path / "another-checkout"
    project.write(1, 2)
    assert project.build() == ("1 2", 1)


def test_a_changed_header_is_compiled_again(project: Project) -> None:
    assert project.build() == ("1 2", 0)
    project.write(3, 2)
    assert project.build() == ("3 2", 0)
    project.write(3, 4)
    assert project.build() == ("3 4", 0)
    project.write(1, 2)
    assert project.build() == ("1 2", 1)


def test_a_changed_flag_is_compiled_again(project: Project) -> None:
    assert project.build() == ("1 2", 0)
    assert project.build("-DCMAKE_CXX_FLAGS=-O1") == ("1 2", 0)


def test_switched_off_nothing_is_reused(project: Project) -> None:
    assert project.build() == ("1 2", 0)
    assert project.build("-DPADFREE_OBJECT_CACHE=OFF") == ("1 2", 0)
