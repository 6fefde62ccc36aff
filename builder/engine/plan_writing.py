# SPDX-License-Identifier: Apache-2.0
"""Writes a plan with its metadata and what else is kept beside it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from padfree.runtime import Profile, parse_metadata, sidecar_path

from ..files import json_bytes, write_files
from .engine_builder import BuiltEngine, EngineBuilder

_log = logging.getLogger(__name__)


def write_plan(
    path: Path,
    engine: BuiltEngine,
    raw: Mapping[str, Any],
    profile: Profile,
    builder: EngineBuilder,
    choices: Mapping[str, str],
) -> dict[str, Any]:
    """Writes a plan, with its metadata beside it, all or nothing; returns the metadata.

    `choices` has "linear" ("padfree" or "tensorrt") and "norms" ("folded" or "separate").

    Raises:
        BuildError: the disk is full or the folder cannot be written.
    """
    return write_described(path, engine, describe_plan(engine, raw, profile, builder, choices), builder, [])


def describe_plan(
    engine: BuiltEngine, raw: Mapping[str, Any], profile: Profile, builder: EngineBuilder, choices: Mapping[str, str]
) -> dict[str, Any]:
    """A plan's metadata; arguments as write_plan's."""
    return {
        **raw,
        "engine": {
            "tensorrt": builder.tensorrt_version,
            "gpu_name": builder.device.name,
            "compute_capability": builder.device.compute_capability,
            "profile": asdict(profile),
            **choices,
            "build_seconds": {},
            "plan_bytes": memoryview(engine.plan).nbytes,
            "plan_sha256": hashlib.sha256(engine.plan).hexdigest(),
            "plugin_layers": dict(engine.plugin_layers),
        },
    }


def write_described(
    path: Path,
    engine: BuiltEngine,
    description: dict[str, Any],
    builder: EngineBuilder,
    more_files: Sequence[tuple[Path, bytes]],
) -> dict[str, Any]:
    """As write_plan, with the metadata of describe_plan, which gets the seconds of the phases, and `more_files`."""
    description["engine"]["build_seconds"] = dict(builder.phases.seconds)
    parse_metadata(description, str(path))
    # Whoever loads these compares digests.
    write_files([(path, engine.plan), (sidecar_path(path), json_bytes(description)), *more_files], sync=False)
    _log.info("%s: %d bytes, plugin layers %s", path, memoryview(engine.plan).nbytes, dict(engine.plugin_layers))
    return description
