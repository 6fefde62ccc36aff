# SPDX-License-Identifier: Apache-2.0
"""Processes that believe in another number of cores than the machine has."""

from __future__ import annotations

import os
from pathlib import Path


def environment_with(cores: int) -> dict[str, str]:
    """This process's environment, for Python processes that start as many threads as on so many cores.

    glibc counts the cores itself, to limit its heaps to eight for each. So it gets a number of heaps below which it
    does not count.
    """
    paths = [str(Path(__file__).parent / "many_cores"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PADFREE_TEST_CORES": str(cores),
        "MALLOC_ARENA_TEST": str(8 * cores),
        "OPENBLAS_NUM_THREADS": str(cores),
    }
