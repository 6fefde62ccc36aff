# SPDX-License-Identifier: Apache-2.0
"""A wheel that may be published: auditwheel grants its manylinux tag, and an index accepts its size."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MOST_BYTES = 100_000_000
"""The largest file that package indexes accept, unless they are asked for more."""


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that PADFREE_WHEEL names."""
    name = os.environ.get("PADFREE_WHEEL")
    if not name:
        pytest.skip("PADFREE_WHEEL names no wheel; .ci/run builds one")
    return Path(name)


@pytest.fixture(scope="module")
def audit(wheel: Path) -> dict[str, Any]:
    """What auditwheel finds out about the wheel."""
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("needs auditwheel: pip install '.[dev]'")
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    actual: dict[str, Any] = json.loads(done.stdout)
    return actual


def test_the_tag_is_what_auditwheel_grants(wheel: Path, audit: dict[str, Any]) -> None:
    interpreter, abi, platforms = wheel.stem.split("-")[-3:]
    assert (interpreter, abi) == ("py3", "none")
    assert audit["overall_tag"].startswith("manylinux_")
    assert audit["overall_tag"] in platforms.split(".")


def test_the_wheel_brings_and_needs_no_other_library(audit: dict[str, Any]) -> None:
    assert audit["external_libs"] == {}


def test_an_index_takes_the_wheel(wheel: Path) -> None:
    assert 1_000_000 < wheel.stat().st_size < MOST_BYTES
