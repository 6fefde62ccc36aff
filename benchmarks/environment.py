# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made with, and the JSON lines that keep it: from builder/bench/environment.py."""

import os

from from_package import load

_module = load("environment")
environment, append_record = _module.environment, _module.append_record


def require_kernels_library() -> None:
    """Raises SystemExit unless PADFREE_KERNELS_LIBRARY names the launchers' library."""
    if not os.environ.get("PADFREE_KERNELS_LIBRARY"):
        raise SystemExit("PADFREE_KERNELS_LIBRARY does not name libpadfree_kernels.so (-DPADFREE_KERNEL_TESTS=ON)")
