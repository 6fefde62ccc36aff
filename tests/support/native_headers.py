# SPDX-License-Identifier: Apache-2.0
"""Where the headers of TensorRT and CUDA are, for tests that compile C++."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .pages import ROOT


def headers() -> list[Path] | None:
    """Folders with TensorRT's headers, as left by a build on this machine, and with those of CUDA's package.

    The crate with TensorRT's headers also has a cuda_runtime_api.h, but its four lines are too little for the plugins.
    """
    roots = [Path(os.environ.get("TENSORRT_ROOT", "/nowhere")), ROOT / "build"]
    roots += [Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "src"]
    tensorrt = [path.parent for root in roots for path in sorted(root.rglob("TRT-Enterprise-*/NvInferRuntime.h"))]
    cuda = [path.parent for folder in sys.path for path in Path(folder).glob("nvidia/*/include/cuda_runtime_api.h")]
    return [tensorrt[-1], cuda[0]] if tensorrt and cuda else None
