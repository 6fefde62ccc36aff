# SPDX-License-Identifier: Apache-2.0
"""How many files, and so connections, a process of the server may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

MOST_FILES = 1 << 16
"""As many as are asked for; some programs take longer with every file that they might have."""
OWN_FILES = 64
"""Files that a front-end has open beside its connections, at most."""


def allow_connections() -> None:
    """Raises the limit of open files as far as this process may; those that it starts have the same.

    The usual limit, 1,024, is for programs that call select(), which is not done here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS promises more than it grants
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class ConnectionCount:
    """Notices when a front-end has nearly as many connections as files may be open.

    Beyond that the event loop resets whoever connects, and nobody else would tell.

    Args:
        at: the number of the front-end.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._was_full = False

    def look(self, connections: int) -> str | None:
        """A line for the log when there are too many connections, once until there are fewer; otherwise None."""
        most = self._limit - OWN_FILES
        is_full = self._limit != resource.RLIM_INFINITY and connections >= most
        was_full, self._was_full = self._was_full, is_full
        if was_full or not is_full:
            return None
        return (
            f"front-end {self._at} has {connections} connections, and may have {self._limit} files open: more "
            "connections are reset; raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd), or --processes"
        )
