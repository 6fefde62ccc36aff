"""Kernel tests need a GPU, torch and libpadfree_kernels.so; without one of them they say which and are skipped."""

# SPDX-License-Identifier: Apache-2.0
import gc
import os
from collections.abc import Iterator

import pytest

MOST_KEPT = 4 << 30  # bytes that PyTorch may keep between tests: other processes share the GPU
collect_ignore_glob: list[str] = []
try:
    import torch

    missing = "" if torch.cuda.is_available() else "no GPU"
except ImportError:
    missing = "torch is not installed"
if not missing and not os.environ.get("PADFREE_KERNELS_LIBRARY"):
    missing = "PADFREE_KERNELS_LIBRARY does not name libpadfree_kernels.so (build with -DPADFREE_KERNEL_TESTS=ON)"
if missing:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"kernel tests: {'skipped, ' + missing if missing else 'on'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kernels" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """References in float64 of 8192 tokens take tens of gigabytes, which PyTorch would keep until its process ends."""
    yield
    if torch.cuda.memory_reserved() > MOST_KEPT:
        gc.collect()
        torch.cuda.empty_cache()
