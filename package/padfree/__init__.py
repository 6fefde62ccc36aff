# SPDX-License-Identifier: Apache-2.0
"""padfree: Hugging Face encoders as TensorRT engines that compute no padding.

`padfree.Model` answers texts: vectors, scores, labels. What it is made of lies in the packages below, each of which is
imported by itself: padfree.onnx_tools rewrites models, padfree.builder builds engines, padfree.runtime runs them.
`python -m padfree` is the `padfree` command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Model", "__version__"]

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
