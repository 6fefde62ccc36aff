# SPDX-License-Identifier: Apache-2.0
"""What padfree writes into a model's folder, and the manifest that tells its files from others'."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError
from padfree.builder.files import json_bytes
from padfree.contract.fields import decode
from padfree.runtime import file_digest, sidecar_path

Files = dict[str, "bytes | Callable[[Path], object]"]
"""Path in the folder -> content, or what writes the file."""

MANIFEST = "padfree.json"
PLAN_FILE = "model.plan"
FORMAT = 2
ENCODER, TOKENIZER, ENSEMBLE = "encoder", "tokenizer", "ensemble"
CACHES = "__pycache__"  # Python makes these beside the model.py that a server runs


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder: what goes into the folder of its new version, and what lies beside the versions.

    Attributes:
        version: files of the version.
        beside: files beside the versions, but for the configuration.
        config: config.pbtxt.
        part: ENCODER, TOKENIZER or ENSEMBLE.
        family: the encoder's name, which all parts of one text model share.
        needs: what the server's image has to have for it, as image.Needs writes it; of encoders.
    """

    version: Files
    beside: Mapping[str, bytes]
    config: bytes
    part: str
    family: str
    needs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Manifest:
    """What padfree wrote into a folder: digests of the files beside the versions, and of every version's.

    A repository has one too, for what all of its models share; that has no part.
    """

    part: str
    family: str
    needs: Mapping[str, Any] | None
    files: Mapping[str, str]
    versions: Mapping[str, Mapping[str, str]]

    def to_json(self) -> bytes:
        """The manifest as a file."""
        values = {name: value for name, value in vars(self).items() if value}
        return json_bytes({"format": FORMAT, **values})


def copy_of(source: Path) -> Callable[[Path], object]:
    """Content for Files: a copy of a file."""
    return partial(shutil.copyfile, source)


def plan_files(plan: Path) -> Files:
    """A plan and its metadata."""
    return {PLAN_FILE: copy_of(plan), f"{PLAN_FILE}.json": copy_of(sidecar_path(plan))}


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none that this version of padfree wrote."""
    try:
        raw = decode((folder / MANIFEST).read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            return None
        return Manifest(
            part=str(raw.get("part", "")),
            family=str(raw.get("family", "")),
            needs=dict(raw["needs"]) if "needs" in raw else None,
            files=_digests(raw.get("files", {})),
            versions={str(name): _digests(files) for name, files in raw.get("versions", {}).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_version(folder: Path, files: Files) -> None:
    """Fills a new folder."""
    folder.mkdir()
    for name, content in sorted(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)


def digests_in(folder: Path) -> dict[str, str]:
    """Path in the folder -> digest of every file, but for what Python keeps there."""
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in _files_in(folder)}


def digest_of(content: Path | bytes) -> str:
    """SHA-256 of a file, or of bytes."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return file_digest(content)


def check_replaceable(
    folder: Path, new: Mapping[str, bytes], ours: Mapping[str, str], *, overwrite: bool
) -> tuple[list[str], list[str]]:
    """Which files of `new` are to be written, and which of those that padfree wrote before (`ours`) are now unused.

    Raises:
        BuildError: a file that would be replaced or removed was changed since, or is somebody else's.
    """
    changed_names = [name for name, content in new.items() if not _holds(folder / name, digest_of(content))]
    unused_names = [name for name in ours if name not in new and (folder / name).is_file()]
    for name in [*changed_names, *unused_names]:
        path = folder / name
        if not path.exists() and not path.is_symlink():
            continue
        if not path.is_file():
            raise BuildError(f"{path} is no file, and would be replaced; choose another folder")
        if overwrite or _holds(path, ours.get(name, "")):
            continue
        if name not in ours:
            raise BuildError(
                f"{path} is a file that padfree triton did not write, and would be replaced; choose another folder, or "
                "pass --overwrite to lose it"
            )
        raise BuildError(
            f"{path} was changed since padfree triton wrote it; choose another folder, or pass --overwrite to lose that"
        )
    return changed_names, unused_names


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and digest_of(path) == digest


def _digests(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(digest) for name, digest in raw.items()}


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and CACHES not in path.relative_to(folder).parts:
            yield path
