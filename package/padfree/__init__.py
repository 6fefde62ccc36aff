# SPDX-License-Identifier: Apache-2.0
"""padfree: Hugging Face encoders as TensorRT engines that compute no padding.

`padfree.Model` answers texts: vectors, scores, labels. The packages that it is made of are imported by themselves:
padfree.onnx_tools rewrites models, padfree.builder builds engines, padfree.runtime runs them.
`python -m padfree` is the `padfree` command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__all__ = ["Model", "__version__"]

# Packages of onnxruntime 1.29 and later report their sessions (names, hashes of graphs and weights) to Microsoft and
# keep an id of the machine, unless this is set before they are imported. ORT_DISABLE_TELEMETRY=0 lets them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from padfree.builder import Model

    __version__: str
    """The installed version, or "unknown" where padfree's files are used without being installed."""
else:  # type checkers would take every name for one that exists

    def __getattr__(name: str) -> Any:
        # Looked up when somebody asks: each takes longer than all that an import of padfree otherwise does.
        if name == "Model":
            from padfree.builder import Model

            return Model
        if name != "__version__":
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        from importlib import metadata

        try:
            return metadata.version("padfree")
        except metadata.PackageNotFoundError:
            return "unknown"
