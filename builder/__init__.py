# SPDX-License-Identifier: Apache-2.0
"""padfree.builder: builds TensorRT engines from ONNX models, and holds the `padfree` command."""

from padfree.runtime import plugin_library

from .build import build_engine
from .errors import BuildError

__all__ = ["BuildError", "build_engine", "plugin_library"]
