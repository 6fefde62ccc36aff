# SPDX-License-Identifier: Apache-2.0
"""How fast the processors are while other commands run, until its parent ends: CPU seconds of the same work, by line.

A processor of a virtual machine is slower while another machine uses the other half of its core, or while the host is
hot: README's tests took 400 s and 608 s on the same two within an hour. No counter of the kernel shows that.
"""

import os
import time

PAUSE_S = 5.0
ADDITIONS = 2_000_000


def main() -> None:
    """Measures now and then, for about a hundredth of two processors' time."""
    parent = os.getppid()
    while os.getppid() == parent:
        start, total = time.process_time(), 0
        for number in range(ADDITIONS):
            total += number
        print(f"{time.process_time() - start:.4f}", flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
