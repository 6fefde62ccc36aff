# SPDX-License-Identifier: Apache-2.0
"""A plan and the metadata beside it: read, and held against each other. Needs neither TensorRT nor a GPU."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from padfree.contract import metadata as contract
from padfree.contract.file_kinds import other_kind, refuse_special
from padfree.contract.metadata import EngineInfo, Metadata
from padfree.contract.text_files import read_json

from .errors import SessionError

_CHUNK_BYTES = 1 << 22


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def parse_metadata(raw: Any, source: str) -> Metadata:
    """As padfree.contract's, for callers of padfree.runtime.

    Raises:
        SessionError: a key is missing or holds something not allowed.
    """
    return contract.parse_metadata(raw, source, SessionError)


def sidecar_path(plan: Path) -> Path:
    """Where the metadata of a plan lies: model.plan -> model.plan.json."""
    return plan.with_name(plan.name + ".json")


def check_no_folder(path: Path) -> None:
    """Raises SessionError where a model's folder is given instead of what is built of it; says how it is built."""
    if path.is_dir():
        raise SessionError(
            f"{path}: is a folder, which does not run by itself; build it: padfree build {path} -o {path.name}.plan, "
            f"or for the CPU: padfree optimize {path} -o {path.name}.onnx"
        )


def read_sidecar(plan: Path) -> Metadata:
    """Reads the metadata beside a plan.

    Raises:
        SessionError: no such plan, another kind of file, no metadata beside it, or not the metadata of an engine.
    """
    check_no_folder(plan)
    refuse_special(plan, SessionError)
    if not plan.is_file():
        raise SessionError(f"{plan}: no such plan; build one with: padfree build model.onnx -o {plan}")
    path = sidecar_path(plan)
    if not path.exists():
        _refuse_other_kind(plan)
        raise SessionError(
            f"{plan}: its metadata {path.name} is missing; copy it along with the plan, or build the plan again "
            f"with: padfree build model.onnx -o {plan.with_suffix('.plan')}"
        )
    metadata = parse_metadata(read_json(path, SessionError, "build the plan again with padfree build"), str(path))
    if metadata.engine is None:
        raise SessionError(f"{path}: holds no 'engine' entry, so it is not a plan's metadata; build the plan again")
    return metadata


def _refuse_other_kind(plan: Path) -> None:
    """Raises SessionError for a file that is no plan, if its beginning tells what it is."""
    if kind := other_kind(plan):
        raise SessionError(f"{plan}: {kind.what}; {kind.advice}")


def open_plan(plan: Path) -> Metadata:
    """Reads a plan's metadata and checks that the plan is whole; needs neither TensorRT nor a GPU.

    Raises:
        SessionError: as read_sidecar and check_plan_bytes.
    """
    metadata = read_sidecar(plan)
    assert metadata.engine is not None  # read_sidecar refuses metadata without it
    check_plan_bytes(plan, metadata.engine)
    return metadata


def check_plan_bytes(plan: Path, engine: EngineInfo) -> None:
    """Compares the plan's size and SHA-256 with the metadata.

    Raises:
        SessionError: the plan is truncated, changed, or not the one that the metadata describes.
    """
    size = plan.stat().st_size
    if size != engine.plan_bytes:
        _refuse_other_kind(plan)
        raise SessionError(
            f"{plan}: {size} bytes, its metadata says {engine.plan_bytes}: the plan is truncated or not the one that "
            "was built; copy both files again or build the plan again"
        )
    digest = file_digest(plan)
    if digest != engine.plan_sha256:
        raise SessionError(
            f"{plan}: SHA-256 {digest[:16]}..., its metadata says {engine.plan_sha256[:16]}...: the plan "
            "was changed or damaged; copy both files again or build the plan again"
        )
