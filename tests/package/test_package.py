# SPDX-License-Identifier: Apache-2.0
"""The package itself: its version, its command without a script, and its types."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import padfree
import pytest

ROOT = Path(__file__).resolve().parents[2]
STATED = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)


def test_the_version_is_the_projects() -> None:
    assert STATED is not None
    assert padfree.__version__ == STATED.group(1)


def test_without_an_installation_the_version_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert padfree.__version__ == "unknown"


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'padfree' has no attribute 'missing'"):
        padfree.missing  # type: ignore[attr-defined]  # noqa: B018


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "padfree", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"padfree {padfree.__version__}\n"


def test_importing_it_imports_none_of_its_packages() -> None:
    script = "import sys, padfree; print(*(name for name in sys.modules if name.startswith('padfree.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_it_is_a_regular_package_with_types() -> None:
    assert padfree.__file__ is not None
    assert resources.files("padfree").joinpath("py.typed").is_file()
