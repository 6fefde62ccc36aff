# SPDX-License-Identifier: Apache-2.0
"""Versions of packages are looked up one by one."""

from __future__ import annotations

from importlib import metadata

import pytest
from padfree.builder.bench.environment import PACKAGES, environment, installed_versions
from padfree.builder.compare.report import report


def test_versions_are_those_of_all_that_is_installed() -> None:
    every = {item.name.lower().replace("_", "-"): item.version for item in metadata.distributions()}
    names = (*PACKAGES, "pytest", "numpy", "onnx-graphsurgeon", "no-such-package")
    assert installed_versions(names) == {name: every[name] for name in names if name in every}
    assert "pytest" in every


def test_nothing_else_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the metadata of all packages takes a second."""

    def refuse() -> None:
        raise AssertionError("all are read")

    monkeypatch.setattr(metadata, "distributions", refuse)
    assert environment()["python"]
    assert report.environment()["numpy"] == metadata.version("numpy")
