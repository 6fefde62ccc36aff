# SPDX-License-Identifier: Apache-2.0
"""padfree.builder: builds TensorRT engines from ONNX models, and holds the `padfree` command.

Names are imported on first use, so that the command does not wait for what it does not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from padfree.runtime.gpu import plugin_library

    from .engine.build import build_engine
    from .engine.options import BuildOptions
    from .errors import BuildError
    from .model import Model
    from .peers.padded_engine import build_padded_engine

__all__ = ["BuildError", "BuildOptions", "Model", "build_engine", "build_padded_engine", "plugin_library"]

_MODULES = {
    "BuildError": ".errors",
    "BuildOptions": ".engine.options",
    "Model": ".model",
    "build_engine": ".engine.build",
    "build_padded_engine": ".peers.padded_engine",
}


def __getattr__(name: str) -> Any:
    if name == "plugin_library":
        return importlib.import_module("padfree.runtime.gpu.plugin_library")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
