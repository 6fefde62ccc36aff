# SPDX-License-Identifier: Apache-2.0
"""What PadfreeLinear measured, kept between builds beside TensorRT's timing cache, which holds nothing of plugins.

The plugin library measures every kind of GEMM once in a process (plugins/linear/tables.h); a build gives it the tables
of the last build, and saves what it has afterwards. A table belongs to one GPU model and one build of the library.
"""

from __future__ import annotations

import ctypes
import json
import logging
from pathlib import Path
from typing import Any

from padfree.contract.fields import decode
from padfree.runtime import SessionError
from padfree.runtime.gpu import Device, plugin_library

from ..files import keep_cache

_log = logging.getLogger(__name__)


def path_beside(timing_cache: Path) -> Path:
    """The file of tables that belongs to a timing cache."""
    return timing_cache.with_name(f"{timing_cache.name}.linear.json")


def load(path: Path, device: Device) -> None:
    """Gives the library the tables in a file. Without one that fits and is whole, GEMMs are measured."""
    library_and_origin = _find()
    if library_and_origin is None:
        return
    library, origin = library_and_origin
    try:
        table = decode(path.read_text("utf-8"))
        is_ours = table["gpu"] == device.name and table["library"] == origin
        tables = str(table["tables"]).encode()
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s: cannot be used (%s); GEMMs are measured anew", path, error)
        return
    if not is_ours:
        _log.debug("%s: of another GPU or plugin library", path)
    elif not library.padfreeTakeLinearTables(device.index, tables):
        _log.warning("%s: damaged; GEMMs are measured anew", path)


def save(path: Path, device: Device) -> None:
    """Saves all tables of a GPU that the library has; a folder that cannot be written costs only a warning."""
    library_and_origin = _find()
    if library_and_origin is None:
        return
    library, origin = library_and_origin
    size = library.padfreeLinearTables(device.index, None, 0)
    text = ctypes.create_string_buffer(size)
    if size == 0 or library.padfreeLinearTables(device.index, text, size) != size or not text.value:
        return
    content = {"gpu": device.name, "library": origin, "tables": text.value.decode()}
    keep_cache(path, json.dumps(content).encode(), "measurements of GEMMs")


def _find() -> tuple[Any, list[int]] | None:
    """The library, with size and time of its file, which differ between builds; None where there is none."""
    try:
        file = plugin_library.find()
        library = ctypes.CDLL(str(file))
        library.padfreeLinearTables.restype = ctypes.c_int64
        library.padfreeLinearTables.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
        library.padfreeTakeLinearTables.argtypes = [ctypes.c_int32, ctypes.c_char_p]
    except (SessionError, OSError, AttributeError) as error:  # none, or an older one
        _log.debug("no measurements of GEMMs are kept: %s", error)
        return None
    status = file.stat()
    return library, [status.st_size, status.st_mtime_ns]
