# SPDX-License-Identifier: Apache-2.0
"""A library without the code that a GPU needs is refused by name before the first launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime import SessionError
from padfree.runtime.gpu import device_code, plugin_library
from padfree.runtime.gpu.device import Device
from padfree.runtime.plan_files import parse_metadata

from tests.support.libraries import write_library

L4, H200 = Device(0, "NVIDIA L4", 8, 9), Device(0, "NVIDIA H200", 9, 0)


def test_the_file_tells_and_goes_before_what_lies_beside_it(tmp_path: Path) -> None:
    library = write_library(tmp_path / "libpadfree.so", "80,90a")
    (tmp_path / "build_info.json").write_text(json.dumps({"architectures": ["120"]}), encoding="utf-8")
    assert device_code.architectures(library) == ("80", "90a")
    write_library(library, "")  # a rebuilt library under the same name
    assert device_code.architectures(library) == ()


def test_an_older_library_is_told_by_what_lies_beside_it(tmp_path: Path) -> None:
    library = tmp_path / "libpadfree.so"
    library.write_bytes(b"\x7fELF of an older version")
    assert device_code.architectures(library) is None
    assert device_code.problem("NVIDIA L4", "8.9", library) == ""  # what is unknown is not refused
    device_code._architectures.cache_clear()
    (tmp_path / "build_info.json").write_text(json.dumps({"architectures": ["90a"]}), encoding="utf-8")
    assert device_code.architectures(library) == ("90a",)


@pytest.mark.parametrize("content", [b"", b"padfree architectures: ", b"padfree architectures: " + b"9" * 500])
def test_a_damaged_file_tells_nothing(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libpadfree.so"
    library.write_bytes(content)
    assert device_code.architectures(library) is None
    assert device_code.architectures(tmp_path / "nowhere.so") is None


def test_the_built_library_tells_what_its_build_wrote_down() -> None:
    try:
        library = plugin_library.find()
    except SessionError as error:
        pytest.skip(str(error))
    info = json.loads(library.with_name("build_info.json").read_text(encoding="utf-8"))
    assert device_code.MARK in library.read_bytes()
    assert device_code.architectures(library) == tuple(info["architectures"])


def test_the_message_has_the_command_that_builds_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = write_library(tmp_path / "libpadfree.so", "90a,100")
    monkeypatch.setenv("PADFREE_LIBRARY", str(library))
    device_code.require(H200)
    with pytest.raises(SessionError) as caught:
        device_code.require(L4)
    assert str(caught.value) == (
        f"NVIDIA L4 (compute capability 8.9) needs code for 80, this library has code for 90a, 100 alone ({library}); "
        "in a checkout of padfree run: PADFREE_CUDA_ARCHITECTURES='90a;100;80' pip install ., and unset "
        "PADFREE_LIBRARY; or install padfree's wheel"
    )


def test_a_session_refuses_it_before_tensorrt_loads_anything(
    setup: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds wherever sessions are opened: in workers of bulk jobs, pools and Ray, and in servers."""
    loaded: list[str] = []
    monkeypatch.setattr(plugin_library, "load", lambda: loaded.append("library"))
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", "80")))
    setup.open()  # a plan without plugins needs none
    raw = {**setup.metadata.raw, "engine": {**setup.metadata.raw["engine"], "plugin_layers": {"PadfreePool": 1}}}
    setup.metadata = parse_metadata(raw, "test")
    with pytest.raises(SessionError, match=r"NVIDIA H200 \(compute capability 9\.0\) needs code for 90a"):
        setup.open()
    assert loaded == []
    write_library(tmp_path / "libpadfree.so", "90a")
    setup.open()
    assert loaded == ["library"]
