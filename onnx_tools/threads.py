# SPDX-License-Identifier: Apache-2.0
"""The same for many weights: numpy gives Python's lock away while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MOST = 8  # beyond, memory is the bound

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The function of every item, in order. Raises what the first that fails raises."""
    with ThreadPoolExecutor(min(_MOST, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, items))
