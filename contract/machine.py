# SPDX-License-Identifier: Apache-2.0
"""What this process may use of its machine."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # of glibc's malloc.h


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_heap() -> None:
    """Makes the threads of this process share one heap, where glibc would make eight for each core.

    Every heap keeps up to 64 MB of what was freed, which no other can use. So on 16 cores, arrays of 12 MB that come
    and go in changing threads hold several GB. Holds until the process ends. To be called while there are few threads;
    does nothing without glibc.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Gives freed memory back to the system, also from the middle of the heap; does nothing without glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
