# SPDX-License-Identifier: Apache-2.0
"""padfree: Hugging Face encoders as TensorRT engines that compute no padding.

What programs call lies in the packages below, each of which is imported by itself: padfree.onnx_tools rewrites models,
padfree.builder builds engines, padfree.runtime runs them. `python -m padfree` is the `padfree` command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["__version__"]

if TYPE_CHECKING:
    __version__: str
    """The installed version, or "unknown" where padfree's files are used without being installed."""
else:  # type checkers would take every name for one that exists

    def __getattr__(name: str) -> str:
        # Looked up when somebody asks: reading it takes longer than all that an import of padfree otherwise does.
        if name != "__version__":
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        from importlib import metadata

        try:
            return metadata.version("padfree")
        except metadata.PackageNotFoundError:
            return "unknown"
