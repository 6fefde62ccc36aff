# SPDX-License-Identifier: Apache-2.0
"""TensorRT's timing cache: kept between builds, one file for every TensorRT version and GPU model."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from ..errors import BuildError
from ..files import keep_cache

_log = logging.getLogger(__name__)


def default_path(tensorrt_version: str, gpu_name: str, compute_capability: str) -> Path:
    """The cache file in the user's cache folder (XDG_CACHE_HOME, or ~/.cache)."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    gpu = re.sub(r"[^A-Za-z0-9]+", "-", gpu_name).strip("-").lower()
    return base / "padfree" / f"timing-tensorrt{tensorrt_version}-{gpu}-sm{compute_capability}.cache"


def attach(config: Any, path: Path, *, is_named: bool = False) -> bool:
    """Gives a builder configuration the cache in `path`, or an empty one.

    A file that cannot be read or that TensorRT refuses is dropped with a warning: the build takes longer, no more.

    Returns:
        Whether the build may replace the file: not one that the user named and TensorRT refuses, which may be the cache
        of another GPU, or no cache at all.
    """
    content, ours = b"", True
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        _log.debug("timing cache %s: none yet", path)
    except OSError as error:
        _log.warning("timing cache %s: cannot be read (%s); building without it", path, error)
    if content and not _set(config, content):
        advice = "left as it is: name a new file" if is_named else "dropped, built anew"
        _log.warning("timing cache %s: damaged or from another TensorRT or GPU; %s", path, advice)
        content, ours = b"", not is_named
    if not content and not _set(config, b""):
        raise BuildError("TensorRT refused an empty timing cache; pass --no-timing-cache")
    return ours


def save(config: Any, path: Path) -> None:
    """Writes the configuration's cache; a folder that cannot be written costs a warning only."""
    cache = config.get_timing_cache()
    if cache is not None:
        keep_cache(path, bytes(cache.serialize()), "timing cache")


def _set(config: Any, content: bytes) -> bool:
    try:
        cache = config.create_timing_cache(content)
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            return False
        # TensorRT 10.6 takes any bytes: it logs that they are none of its own, and goes on with an empty cache.
        return len(bytes(cache.serialize())) >= len(content) // 2
    except (RuntimeError, TypeError, ValueError) as error:
        _log.debug("timing cache refused: %s", error)
        return False
