# SPDX-License-Identifier: Apache-2.0
"""The libraries beside libpadfree.so that a Triton server loads."""

from __future__ import annotations

from pathlib import Path

from padfree.builder.errors import BuildError
from padfree.runtime.gpu import plugin_library

REGISTER = "libpadfree_register.so"
BATCHING = "libpadfree_triton_batching.so"
WHY = {
    REGISTER: "the server loads padfree's plugins with it",
    BATCHING: "without it a batch may hold more tokens than the plan takes, and all its requests fail",
}


def find(name: str) -> Path:
    """REGISTER or BATCHING.

    Raises:
        BuildError: it is not there; padfree.runtime.SessionError: not even libpadfree.so is.
    """
    library = plugin_library.find().with_name(name)
    if not library.is_file():
        raise BuildError(
            f"{library} is missing: {WHY[name]}; install padfree again with its libraries (`padfree doctor` says what "
            "that needs), or use --backend python"
        )
    return library
