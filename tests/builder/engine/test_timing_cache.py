# SPDX-License-Identifier: Apache-2.0
"""The timing cache: where it lies, and that a bad one costs nothing but time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
from padfree.builder.engine import timing_cache


@dataclass
class Cache:
    """A cache as TensorRT gives it."""

    content: bytes

    def serialize(self) -> bytearray:
        return bytearray(self.content + b"+")


class Config:
    """Takes empty caches and those that start with "good", as TensorRT takes those of its version and GPU."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.cache: Cache | None = None
        self.refusal = refusal

    def create_timing_cache(self, content: bytes) -> Cache | None:
        if content.startswith(b"raise") and self.refusal:
            raise self.refusal
        if content.startswith(b"emptied"):
            return Cache(b"")  # as TensorRT 10.6 does with any bytes that it did not write
        return None if content.startswith(b"null") else Cache(content)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.content and not cache.content.startswith(b"good"):
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache


@pytest.fixture(autouse=True)
def propagated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches on the propagation that caplog needs and that the command line's tests switch off."""
    monkeypatch.setattr(logging.getLogger("padfree"), "propagate", True)


def test_the_path_names_version_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    path = timing_cache.default_path("10.6.0", "NVIDIA H100 80GB (HBM3)", "90")
    assert path == Path("/caches/padfree/timing-tensorrt10.6.0-nvidia-h100-80gb-hbm3-sm90.cache")


def test_a_cache_is_used_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "deep" / "timing.cache"
    config = Config()
    timing_cache.attach(config, path)
    assert config.cache == Cache(b"")
    path.parent.mkdir()
    path.write_bytes(b"good")
    timing_cache.attach(config, path)
    timing_cache.save(config, path)
    assert path.read_bytes() == b"good+"
    assert caplog.records == []


@pytest.mark.parametrize("content", [b"garbage", b"null", b"raise", b"emptied"])
def test_a_damaged_cache_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "timing.cache"
    path.write_bytes(content)
    config = Config(RuntimeError("no cache"))
    assert timing_cache.attach(config, path)
    assert config.cache == Cache(b"")
    assert "damaged or from another TensorRT or GPU; dropped" in caplog.text
    assert not timing_cache.attach(config, path, is_named=True)
    assert "left as it is: name a new file" in caplog.text
    assert path.read_bytes() == content
    timing_cache.save(config, path)
    assert path.read_bytes() == b"+"


def test_an_unwritable_folder_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    config = Config()
    config.cache = Cache(b"good")
    timing_cache.save(config, tmp_path / "file" / "timing.cache")
    assert "timing cache not kept" in caplog.text
