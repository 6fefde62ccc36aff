"""Kernel tests need a GPU, torch and libpadfree_kernels.so; if one is missing they are skipped with the reason."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skips import LeftOut, without

MOST_KEPT = 4 << 30  # bytes that PyTorch may keep between tests: other processes share the GPU
missing = without("torch")
if missing is None:
    import torch

    missing = None if torch.cuda.is_available() else "no GPU that PyTorch can use: run on a machine with one"
if missing is None and not os.environ.get("PADFREE_KERNELS_LIBRARY"):
    missing = "PADFREE_KERNELS_LIBRARY does not name libpadfree_kernels.so: CONTRIBUTING.md says how to build it"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    return None if missing is None else LeftOut.of(module_path, parent, missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kernels" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """References in float64 for 8192 tokens take tens of gigabytes, which PyTorch would keep until its process ends."""
    yield
    if torch.cuda.memory_reserved() > MOST_KEPT:
        gc.collect()
        torch.cuda.empty_cache()
