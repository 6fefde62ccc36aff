# SPDX-License-Identifier: Apache-2.0
"""The `padfree` command, also as `python -m padfree` where its script is not on PATH."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> int:
    """Runs the command with the process's arguments, and returns its exit code.

    Importing it takes part of a second. Ctrl-C ends that at once, as nothing has begun that would have to be undone.
    """
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise somebody ignores it
    if is_heard:
        signal.signal(signal.SIGINT, _leave)
    from padfree.builder.cli import main as run

    try:
        if is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # just before the command listens, or just after
        sys.stderr.write("padfree: error: interrupted\n")
        return EXIT_INTERRUPTED


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), b"padfree: error: interrupted; nothing had begun\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
