# SPDX-License-Identifier: Apache-2.0
"""Heaps of glibc's malloc."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

THREADS = 6
COUNT = f"""
import ctypes, os, threading
from padfree.contract.machine import share_heap
share = %s
if share:
    share_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.open_memstream.restype = ctypes.c_void_p
gate = threading.Barrier({THREADS})
def work():
    ctypes.c_void_p(libc.malloc(100_000))
    gate.wait()
threads = [threading.Thread(target=work) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
content, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(content), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(content.value.count(b"<heap nr"))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
@pytest.mark.parametrize(("share", "heaps"), [(True, 1), (False, THREADS + 1)])
def test_threads_share_a_heap(share: bool, heaps: int) -> None:
    found = subprocess.run([sys.executable, "-c", COUNT % share], capture_output=True, text=True, check=True)
    assert int(found.stdout) == heaps
