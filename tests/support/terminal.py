# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a terminal of its own, as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Screen:
    """A terminal's content, without colours and movements of the cursor, and the command's exit code."""

    text: str
    code: int

    @property
    def lines(self) -> list[str]:
        """Everything that was written to each line, including what was overwritten later."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", self.text) if line.strip()]


def padfree_in_terminal(
    arguments: Sequence[str], *, columns: int = 80, environment: Mapping[str, str] | None = None
) -> Screen:
    """Runs `padfree` with these arguments in a terminal of `columns` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    width = {"COLUMNS": str(columns), "LINES": "40"}
    variables = {**os.environ, "TERM": "xterm-256color", **width, **(environment or {})}
    command = [sys.executable, "-m", "padfree", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables) as process:
        os.close(theirs)
        content = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            content += part
    os.close(ours)
    return Screen(_ESCAPE.sub("", content.decode()), process.returncode)
