# SPDX-License-Identifier: Apache-2.0
"""Tests of the plugin library from the host's side: they need the built library, but no GPU unless marked so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library

from tests.support.machine_code import cuobjdump

from .plugin_abi import LogCapture, PluginLibrary


@pytest.fixture(scope="session")
def library_path() -> Path:
    """Path of libpadfree.so; skips the test where it was not built."""
    try:
        return plugin_library.find()
    except SessionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def library(library_path: Path) -> PluginLibrary:
    """The library, opened without help from TensorRT."""
    return PluginLibrary(library_path)


@pytest.fixture
def log(library: PluginLibrary, capfd: pytest.CaptureFixture[str]) -> Iterator[LogCapture]:
    """What the library logs during a test, to a TensorRT logger or to stderr."""
    with LogCapture(library, lambda: capfd.readouterr().err) as capture:
        yield capture


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of cuobjdump; skips the test if it is not installed."""
    pytest.importorskip("elftools")
    try:
        return cuobjdump().parent
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}: pip install '.[dev]'")


@pytest.fixture(scope="session")
def nvcc(tools: Path) -> str:
    """The compiler; skips the test if it is not installed."""
    actual = shutil.which("nvcc", path=str(tools)) or shutil.which("nvcc")
    return actual or pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc")
