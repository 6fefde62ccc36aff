# SPDX-License-Identifier: Apache-2.0
"""Modules of padfree.builder.bench that need no more than they import: kernels are measured without the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "builder" / "bench"


def load(name: str) -> ModuleType:
    """A module of that folder, loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"padfree_bench_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
