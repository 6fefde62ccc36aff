# SPDX-License-Identifier: Apache-2.0
"""The libraries beside libpadfree.so that a Triton server loads."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from padfree.builder.errors import BuildError
from padfree.runtime.gpu import plugin_library

REGISTER = "libpadfree_register.so"
BATCHING = "libpadfree_triton_batching.so"
NATIVE = "libtriton_padfree.so"
ENGINE = "libpadfree_engine.so"
WHY = {
    REGISTER: "the server loads padfree's plugins with it",
    BATCHING: "without it a batch may hold more tokens than the plan takes, and all its requests fail",
    NATIVE: "it is the backend",
    ENGINE: "the backend runs plans with it",
}


def find_needed(backends: Collection[str]) -> list[Path]:
    """The libraries that a server with these backends loads beside libpadfree.so.

    Raises:
        BuildError: as `find`.
    """
    names = [REGISTER] if {"tensorrt", "padfree"} & set(backends) else []
    names += [NATIVE, ENGINE] if "padfree" in backends else []
    return [find(name) for name in names]


def find(name: str) -> Path:
    """One of the libraries above.

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
