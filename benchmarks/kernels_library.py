# SPDX-License-Identifier: Apache-2.0
"""The library with the kernels' launchers, which benchmarks of single kernels call without TensorRT."""

from __future__ import annotations

import os


def require_kernels_library() -> None:
    """Raises SystemExit unless PADFREE_KERNELS_LIBRARY names the launchers' library."""
    if not os.environ.get("PADFREE_KERNELS_LIBRARY"):
        raise SystemExit("PADFREE_KERNELS_LIBRARY does not name libpadfree_kernels.so (-DPADFREE_KERNEL_TESTS=ON)")
