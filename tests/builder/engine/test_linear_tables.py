# SPDX-License-Identifier: Apache-2.0
"""The file that keeps PadfreeLinear's measurements between builds, with a stand-in for the library."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.builder.engine import linear_tables
from padfree.runtime import SessionError
from padfree.runtime.gpu.device import Device

GPU = Device(1, "NVIDIA H200", 9, 0)
TABLES = b"768 768 0 1 0 0 0 0 1 1 8192 8192 0\n"


class Library:
    """A stand-in for the library's two functions."""

    def __init__(self) -> None:
        self.taken: dict[int, bytes] = {}
        self.padfreeTakeLinearTables = Function(self.take)
        self.padfreeLinearTables = Function(self.text)

    def take(self, device: int, text: bytes) -> int:
        if text == b"refused":
            return 0
        self.taken[device] = text
        return 1

    def text(self, device: int, buffer: Any, size: int) -> int:
        content = self.taken.get(device, b"")
        if size > len(content):
            buffer.value = content
        return len(content) + 1


class Function:
    """A stand-in for a foreign function: argtypes and restype can be set on it."""

    def __init__(self, call: Any) -> None:
        self.__call = call

    def __call__(self, *arguments: Any) -> Any:
        return self.__call(*arguments)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    monkeypatch.setattr(logging.getLogger("padfree"), "propagate", True)
    file, result = tmp_path / "libpadfree.so", Library()
    file.write_bytes(b"code")
    monkeypatch.setattr(linear_tables.plugin_library, "find", lambda: file)
    monkeypatch.setattr(linear_tables.ctypes, "CDLL", lambda _path: result)
    return result


def test_tables_survive_the_process(library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = linear_tables.path_beside(tmp_path / "caches" / "timing.cache")
    assert path.name == "timing.cache.linear.json"
    linear_tables.load(path, GPU)
    linear_tables.save(path, GPU)
    assert not path.exists()  # nothing was measured
    library.taken[GPU.index] = TABLES
    linear_tables.save(path, GPU)
    library.taken.clear()
    elsewhere = Device(0, GPU.name, 9, 0)
    linear_tables.load(path, elsewhere)
    assert library.taken == {0: TABLES}
    assert not caplog.records


@pytest.mark.parametrize("what", ["gpu", "library"])
def test_tables_of_another_gpu_or_library_are_not_taken(library: Library, tmp_path: Path, what: str) -> None:
    path = tmp_path / "tables.json"
    library.taken[GPU.index] = TABLES
    linear_tables.save(path, GPU)
    library.taken.clear()
    if what == "library":
        os.utime(tmp_path / "libpadfree.so", (1, 1))
    linear_tables.load(path, Device(1, "NVIDIA H100", 9, 0) if what == "gpu" else GPU)
    assert not library.taken


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"gpu": 3}', "refused"])
def test_a_damaged_file_is_dropped_with_a_warning(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "tables.json"
    library.taken[GPU.index] = TABLES
    linear_tables.save(path, GPU)
    whole = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**whole, "tables": content}) if content == "refused" else content, "utf-8")
    library.taken.clear()
    linear_tables.load(path, GPU)
    assert not library.taken
    assert "GEMMs are measured anew" in caplog.text


def test_an_unwritable_folder_costs_a_warning(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library.taken[GPU.index] = TABLES
    linear_tables.save(tmp_path / "libpadfree.so" / "tables.json", GPU)
    assert "measurements of GEMMs not kept" in caplog.text


def test_without_a_library_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Path:
        raise SessionError("there is none")

    monkeypatch.setattr(linear_tables.plugin_library, "find", missing)
    linear_tables.load(tmp_path / "tables.json", GPU)
    linear_tables.save(tmp_path / "tables.json", GPU)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("library")
def test_an_older_library_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linear_tables.ctypes, "CDLL", lambda _path: SimpleNamespace())
    linear_tables.save(tmp_path / "tables.json", GPU)
    assert not (tmp_path / "tables.json").exists()
