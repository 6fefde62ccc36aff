# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime: runs padfree engines (TensorRT) and rewritten ONNX files (onnxruntime) on ragged batches."""

from padfree.contract.metadata import EngineInfo, InputInfo, Metadata, OutputInfo, Profile

from .errors import SessionError
from .gpu import plugin_library  # which remembers where Python was started
from .session import Session

__all__ = ["EngineInfo", "InputInfo", "Metadata", "OutputInfo", "Profile", "Session", "SessionError", "plugin_library"]
