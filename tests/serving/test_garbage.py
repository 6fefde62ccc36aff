# SPDX-License-Identifier: Apache-2.0
"""Reference cycles that requests leave behind are collected soon, however much else a server's process holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc, weakref
from collections import deque
from padfree.serving.garbage import leave_out_what_stays

class Request: pass

stays = [[] for _ in range(1_000_000)]
if {freezes}:
    leave_out_what_stays()
left, waiting, most = weakref.WeakSet(), deque(maxlen=15_000), 0
for _ in range(150_000):
    one = Request()
    one.itself = one
    left.add(one)
    waiting.append(one)  # for as long as others, so that it outlives collections of what is new
    most = max(most, len(left) - len(waiting))
print(most)
"""


def most_left(*, freezes: bool) -> int:
    """The most ended requests that were in memory at any one time."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(freezes=freezes)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collects otherwise: use Python up to 3.13")
def test_few_cycles_lie_in_memory_at_one_time() -> None:
    assert most_left(freezes=True) < 80_000
    assert most_left(freezes=False) > 100_000
