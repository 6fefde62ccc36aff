# SPDX-License-Identifier: Apache-2.0
"""Rewrites the files that stdin names, one per line, and prints the CPU seconds of each, or "refused"."""

from __future__ import annotations

import sys
import time

from padfree.onnx_tools import RewriteError, rewrite


def seconds_of(path: str, interface: str) -> float | None:
    """CPU seconds of all threads of the process; None if the file is refused."""
    start = time.process_time()
    try:
        rewrite(path, interface=interface)
    except RewriteError:
        return None
    return time.process_time() - start


def main() -> None:
    """Answers until stdin ends."""
    for line in sys.stdin:
        path, interface = line.split()
        seconds = seconds_of(path, interface)
        print("refused" if seconds is None else f"{seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
