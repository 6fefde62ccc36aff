# SPDX-License-Identifier: Apache-2.0
"""Writes a folder whole or not at all, and replaces none but those that it wrote itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from padfree.builder.errors import BuildError

Files = dict[str, "bytes | Callable[[Path], object]"]
"""Path in the folder -> content, or what writes the file."""

MANIFEST = "padfree.json"
FORMAT = 1
CHUNK_BYTES = 1 << 22


def copy_of(source: Path) -> Callable[[Path], object]:
    """Content for Files: a copy of a file."""
    return partial(shutil.copyfile, source)


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Fails early where `folder` may not be written.

    It may be new, empty, or one that write_folder made and nobody changed since; with `overwrite` also a changed one.

    Raises:
        BuildError: what stands there, and what to do.
    """
    if not folder.parent.is_dir():
        raise BuildError(
            f"{folder}: the folder {folder.parent} does not exist; make it first: mkdir -p {folder.parent}"
        )
    if not os.access(folder.parent, os.W_OK):
        raise BuildError(f"{folder}: the folder {folder.parent} is not writable; choose another path")
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise BuildError(f"{folder} is no folder; choose a new one")
    if not any(folder.iterdir()):
        return
    written = _read_manifest(folder)
    if written is None:
        raise BuildError(
            f"{folder} holds files that padfree triton did not write, and would be replaced as a whole; choose a new "
            "folder"
        )
    if not overwrite and (changed := _changes(folder, written)):
        raise BuildError(
            f"{folder}: {changed} since padfree triton wrote it; choose a new folder, or pass --overwrite to lose that"
        )


def write_folder(folder: Path, files: Files, *, overwrite: bool) -> None:
    """Writes all files beside `folder` and moves them into place when every one is complete.

    The same files give the same bytes. A list of them with their digests, padfree.json, is written along.

    Raises:
        BuildError: as check_folder; or the disk is full, and nothing has changed then.
    """
    check_folder(folder, overwrite=overwrite)
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            staged = aside / "new"
            _write(staged, files)
            _swap(staged, folder, aside / "old")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise BuildError(
            f"{folder}: cannot be written ({error.strerror or error}); nothing was changed: check that {folder.parent} "
            "is writable and has room, or choose another path"
        ) from error


def _write(folder: Path, files: Files) -> None:
    for name, content in sorted(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
    manifest = {"format": FORMAT, "files": {name: _digest(path) for name, path in _files_in(folder)}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _swap(staged: Path, folder: Path, old: Path) -> None:
    if folder.exists():
        folder.rename(old)
    try:
        staged.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def _read_manifest(folder: Path) -> Mapping[str, str] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {str(name): str(digest) for name, digest in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _changes(folder: Path, written: Mapping[str, str]) -> str:
    """What differs from the manifest, for a message; "" where nothing does."""
    there = dict(_files_in(folder))
    there.pop(MANIFEST, None)
    for name in sorted({*there, *written}):
        if name not in written:
            return f"{name} was added"
        if name not in there:
            return f"{name} was removed"
        if _digest(there[name]) != written[name]:
            return f"{name} was changed"
    return ""


def _files_in(folder: Path) -> list[tuple[str, Path]]:
    """(path in the folder, path) of every file, sorted."""
    return sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if not path.is_dir())


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
