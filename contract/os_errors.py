# SPDX-License-Identifier: Apache-2.0
"""What the system says about files that cannot be read or written, with what helps against it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

ADVICE: Mapping[int, str] = {
    errno.EACCES: "check its permissions, and those of its folders",
    errno.EPERM: "check its permissions, and those of its folders",
    errno.ENOSPC: "free space there, or choose another folder",
    errno.EDQUOT: "free space there, or choose another folder",
    errno.EROFS: "choose a folder that is not mounted read-only",
    errno.ENOENT: "check its path",
    errno.ENOTDIR: "check its path",
    errno.EISDIR: "name a file in it",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.ELOOP: "its links lead in a circle: name a file",
    errno.EMFILE: "close files, or raise the limit (ulimit -n)",
    errno.ENFILE: "close files, or raise the limit (ulimit -n)",
    errno.ENOMEM: "free memory",
    errno.EIO: "check the disk, or the network that it is reached by",
    errno.ESTALE: "check the disk, or the network that it is reached by",
}


def not_readable(error: Exception, otherwise: str) -> str:
    """Says that something cannot be read, why, and what helps: `otherwise`, unless the system's reason has its own."""
    if not isinstance(error, OSError):
        return f"cannot be read ({error}); {otherwise}"
    return f"cannot be read ({error.strerror or error}); {ADVICE.get(error.errno or 0, otherwise)}"


def describe_os_error(error: OSError) -> str:
    """An error of the system's as one line: the file, what is wrong, and what helps; "" where it has no advice."""
    advice = ADVICE.get(error.errno or 0)
    if advice is None:
        return ""
    name = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return f"{name}{error.strerror}; {advice}"
