# SPDX-License-Identifier: Apache-2.0
"""Tools that the build's tests run: CMake with Ninja."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

MINIMUM = (3, 28)


@dataclass(frozen=True)
class CMake:
    """The paths of CMake and Ninja."""

    cmake: str
    ninja: str

    def configure(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `cmake` with the Ninja generator."""
        command = [self.cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={self.ninja}", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)


def beside_python(name: str) -> str | None:
    """A program from this virtual environment, or else from PATH."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


@pytest.fixture(scope="session")
def cmake() -> CMake:
    """CMake in at least the version that the build requires; the test is skipped without it."""
    program, ninja = beside_python("cmake"), beside_python("ninja")
    if program is None or ninja is None:
        pytest.skip("needs cmake and ninja: pip install '.[dev]'")
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"version (\d+)\.(\d+)", text)
    if match is None or tuple(map(int, match.groups())) < MINIMUM:
        pytest.skip(f"needs cmake >= 3.28, found {text.splitlines()[0]!r}: pip install '.[dev]'")
    return CMake(program, ninja)


@pytest.fixture(scope="session")
def ccache() -> str:
    """The path of ccache; the test is skipped without it."""
    program = beside_python("ccache")
    if program is None:
        pytest.skip("needs ccache: pip install '.[dev]'")
    return program
