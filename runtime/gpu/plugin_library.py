# SPDX-License-Identifier: Apache-2.0
"""Finds libpadfree.so and loads it into TensorRT's plugin registry."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import SessionError

LIBRARY_NAME = "libpadfree.so"
BUILD_INFO_NAME = "build_info.json"
ENVIRONMENT_VARIABLE = "PADFREE_LIBRARY"
PROBE_PLUGIN = "PadfreeAttention"


def find() -> Path:
    """The plugin library: PADFREE_LIBRARY if set, else in one of `library_folders`.

    Raises:
        SessionError: there is none; the message names every folder that was looked at.
    """
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    if path:
        if Path(path).is_file():
            return Path(path).resolve()
        raise SessionError(
            f"{ENVIRONMENT_VARIABLE}={path} is no file; set it to the path of {LIBRARY_NAME}, or unset it"
        )
    looked_at = library_folders()
    for folder in looked_at:
        if (folder / LIBRARY_NAME).is_file():
            return (folder / LIBRARY_NAME).resolve()
    folders = ", ".join(str(folder) for folder in looked_at)
    info = read_build_info()
    reasons = "; ".join(info.get("missing", [])) or "padfree was installed without its plugin library"
    steps = "; ".join(info.get("next_steps", [])) or "run `padfree doctor` to see what a build of it misses here"
    raise SessionError(
        f"{LIBRARY_NAME} was not found in {folders}: {reasons}. Next step: {steps}, then install padfree again; or set "
        f"{ENVIRONMENT_VARIABLE} to the library's path"
    )


def library_folders() -> list[Path]:
    """Where the library is looked for: beside these Python files, then where else padfree is installed.

    An editable install has Python files and library in different folders, and both in `padfree.__path__`. A folder
    named padfree elsewhere, such as in the current folder, adds nothing to it, for `padfree` is a regular package.
    """
    own = Path(__file__).parents[2]
    package = importlib.import_module("padfree")
    return [folder / "lib" for folder in dict.fromkeys([own, *map(Path, package.__path__)])]


def read_build_info() -> dict[str, Any]:
    """What the installation wrote about the library: versions and architectures, or what was missing; {} if nothing."""
    for folder in library_folders():
        try:
            info = json.loads((folder / BUILD_INFO_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(info, dict):
            return info
    return {}


def is_loaded(registry: Any) -> bool:
    """Whether the registry has padfree's creators already, whoever loaded them."""
    return any(creator.name == PROBE_PLUGIN for creator in registry.all_creators)


def load(library: Path | None = None) -> Path:
    """Loads the library into TensorRT's registry; calling it again, or after another loader, changes nothing.

    Args:
        library: another file than the one that find() gives.

    Raises:
        SessionError: no TensorRT, no library, or TensorRT cannot load it.
    """
    from .trt import import_tensorrt

    path = library or find()
    trt = import_tensorrt()
    registry = trt.get_plugin_registry()
    if is_loaded(registry):
        return path
    registry.load_library(str(path))
    if not is_loaded(registry):
        raise SessionError(
            f"TensorRT {trt.__version__} loaded {path} but it registered no {PROBE_PLUGIN}; the file is damaged or not "
            "padfree's library: install padfree again, or check it with `padfree doctor`"
        )
    return path


def require(operators: Iterable[str]) -> None:
    """Loads the library and checks that TensorRT knows these operators then.

    Raises:
        SessionError: as load; or an operator is unknown.
    """
    from .trt import import_tensorrt

    path = load()
    names = {creator.name for creator in import_tensorrt().get_plugin_registry().all_creators}
    missing = [name for name in operators if name not in names]
    if missing:
        raise SessionError(
            f"{path} has no plugin {', '.join(missing)}: the library is older than the Python files, or another one is "
            "loaded; install padfree again, or check it with `padfree doctor`"
        )
