# SPDX-License-Identifier: Apache-2.0
"""Puts models into a repository beside others, while a server may read it (docs/guide/triton.md)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from padfree.builder.errors import BuildError
from padfree.contract.staging import staged_for

from ..files import named_as
from .config import CONFIG_FILE
from .folder import (
    CACHES,
    ENSEMBLE,
    MANIFEST,
    Manifest,
    ModelFolder,
    check_replaceable,
    digest_of,
    digests_in,
    read_manifest,
    write_version,
)
from .moves import Moves, remove

NEW = "version"  # what a folder that becomes a version is called: no number, which the server would load
VERSIONS = re.compile(r"[1-9][0-9]*")
MAX_VERSION = 2**63 - 1  # the server's type


@dataclass(frozen=True)
class _Target:
    """A model and the folder that it goes to."""

    folder: Path
    model: ModelFolder
    before: Manifest | None
    new_names: tuple[str, ...]
    unused_names: tuple[str, ...]


def check_repository(folder: Path) -> None:
    """Refuses, before any work, a path where there can be no repository.

    Raises:
        BuildError: says why, and what to do.
    """
    if folder.exists() or folder.is_symlink():
        if not folder.is_dir():
            raise BuildError(f"{folder} is no folder; choose a new one")
    elif not folder.parent.is_dir():
        raise BuildError(
            f"{folder}: the folder {folder.parent} does not exist; make it first: mkdir -p {folder.parent}"
        )
    writable = folder if folder.is_dir() else folder.parent
    if not os.access(writable, os.W_OK):
        raise BuildError(f"{folder}: the folder {writable} is not writable; choose another path")


@contextlib.contextmanager
def open_repository(repository: Path) -> Iterator[None]:
    """The repository, made if need be, for one process at a time: its models share files.

    A folder that was made for it is removed again if it stays empty.

    Raises:
        BuildError: it cannot be made.
    """
    is_new = not repository.exists()
    with _writing(repository):
        repository.mkdir(exist_ok=True)
        handle = os.open(repository, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                repository.rmdir()
        raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writing(repository: Path) -> Iterator[None]:
    """The system's refusals become BuildErrors."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"{repository}: cannot be written ({error.strerror or error}); nothing was changed: check that it is "
            "writable and has room, or choose another path"
        ) from error


def manifests(repository: Path) -> dict[str, Manifest]:
    """Name -> manifest of every model in a repository that padfree wrote."""
    folders = sorted(path for path in repository.iterdir() if path.is_dir()) if repository.is_dir() else []
    by_name = {path.name: read_manifest(path) for path in folders}
    return {name: manifest for name, manifest in by_name.items() if manifest is not None and manifest.part}


def publish(
    repository: Path,
    models: Mapping[str, ModelFolder],
    shared_files: Mapping[str, bytes],
    *,
    version: int | None = None,
    overwrite: bool = False,
) -> tuple[int, bool]:
    """Writes models, in their order, and the files that all models of the repository share.

    Every model gets one version more than the newest that any of them has; none where all have these files already.
    Other versions, other models and other files stay.

    Args:
        repository: a folder that `open_repository` holds.
        models: name -> what goes to its folder. The last one's configuration is the last file that changes.
        shared_files: files of the repository; without any it keeps what it has.
        version: number of the version; one that exists with other files is only replaced with `overwrite`.
        overwrite: also replace files that were changed since they were written.

    Returns:
        The version's number, and whether it was there already.

    Raises:
        BuildError: a file of somebody else would be lost, the server would not take this version, or the disk is full;
            nothing has changed then.
    """
    indices = [_target(repository / name, model, overwrite=overwrite) for name, model in models.items()]
    before = read_manifest(repository)
    files_before = before.files if before else {}
    ours = {name: files_before[name] for name in shared_files if name in files_before}
    new_names, _ = check_replaceable(repository, shared_files, ours, overwrite=overwrite)
    _remove_leftovers(repository, [*shared_files, MANIFEST])
    with _writing(repository), Moves() as moves:
        stages = []
        for index in indices:
            moves.folder(index.folder)
            _remove_leftovers(index.folder)
            stages.append(moves.aside(index.folder / NEW))
            with named_as({stages[-1]: index.folder}):
                write_version(stages[-1], index.model.version)
        digests = [digests_in(folder) for folder in stages]
        number, there = _choose([index.folder for index in indices], digests, version, overwrite=overwrite)
        files = [moves.file(repository / name, shared_files[name]) for name in new_names]
        if shared_files:
            digest = {name: digest_of(content) for name, content in shared_files.items()}
            manifest = Manifest("", "", None, {**files_before, **digest}, {})
            files += _stage_changed(moves, repository / MANIFEST, manifest.to_json())
        for index, folder, content in zip(indices, stages, digests, strict=True):
            target = index.folder / str(number)
            if not target.is_dir() or digests_in(target) != content:
                files.append(partial(moves.into, folder, target))
            files += _stage_beside(moves, index, number, content)
        for move in files:
            move()
    return number, there


def _target(folder: Path, model: ModelFolder, *, overwrite: bool) -> _Target:
    """Checks a model's folder: new, empty, or this model's."""
    before = read_manifest(folder)
    if folder.exists() or folder.is_symlink():
        if not folder.is_dir():
            raise BuildError(f"{folder} is no folder; choose another --name")
        names = [path.name for path in folder.iterdir() if path.name != CACHES and not staged_for(path)]
        if before is None and names:
            raise BuildError(
                f"{folder} holds files that padfree triton did not write (or an older one): {', '.join(names[:3])}; "
                "choose another --name, or another folder"
            )
    if before is not None and (before.part, before.family) != (model.part, model.family):
        raise BuildError(
            f"{folder} is the {before.part} of the model '{before.family}', and would become the {model.part} of "
            f"'{model.family}'; choose another --name"
        )
    new = {**model.beside, CONFIG_FILE: model.config}
    new_names, unused_names = check_replaceable(folder, new, before.files if before else {}, overwrite=overwrite)
    return _Target(folder, model, before, tuple(new_names), tuple(unused_names))


def _choose(
    folders: list[Path], digests: list[dict[str, str]], asked_version: int | None, *, overwrite: bool
) -> tuple[int, bool]:
    """The version's number, and whether the folders have it with these files already."""
    newest = [max(_versions(folder), default=0) for folder in folders]
    top = max(newest)
    same = all(
        number == top and digests_in(folder / str(number)) == content
        for folder, number, content in zip(folders, newest, digests, strict=True)
        if number
    )
    unasked = top if same and top else top + 1
    number = unasked if asked_version is None else asked_version
    if not 1 <= number <= MAX_VERSION:
        raise BuildError(f"version {number}, allowed: 1 to {MAX_VERSION}; pass --version {max(1, top)}")
    if number < top:
        raise BuildError(
            f"--version {number}: version {top} is there, newer, and the one that the server takes; pass --version "
            f"{top + 1}, or leave it out"
        )
    if same and number == top:
        return number, all(newest)
    for folder, content in zip(folders, digests, strict=True):
        there = folder / str(number)
        if there.exists() and digests_in(there) != content and not overwrite:
            raise BuildError(
                f"{there} is there, with other files; leave --version out for a new version, or pass "
                "--overwrite to lose them"
            )
    return number, False


def _versions(folder: Path) -> list[int]:
    """Numbers of the versions that a server would see."""
    return [int(path.name) for path in folder.iterdir() if path.is_dir() and VERSIONS.fullmatch(path.name)]


def _stage_beside(
    moves: Moves, target: _Target, number: int, content: Mapping[str, str]
) -> Iterator[Callable[[], None]]:
    """Stages the files beside the versions; yields the moves, the configuration's last."""
    model, folder = target.model, target.folder
    for name in target.new_names:
        moves.folder((folder / name).parent)
    new = {**model.beside, CONFIG_FILE: model.config}
    files = {name: moves.file(folder / name, new[name]) for name in target.new_names}
    versions = dict(target.before.versions) if target.before else {}
    older = {name: digests for name, digests in versions.items() if (folder / name).is_dir()}
    manifest = Manifest(
        model.part,
        model.family,
        model.needs,
        {name: digest_of(data) for name, data in new.items()},
        {**older, str(number): content},
    )
    last = files.pop(CONFIG_FILE, None)
    yield from files.values()
    yield from (partial(moves.away, folder / name) for name in target.unused_names)
    yield from _stage_changed(moves, folder / MANIFEST, manifest.to_json())
    if last is not None:
        yield last


def _stage_changed(moves: Moves, path: Path, content: bytes) -> list[Callable[[], None]]:
    """Stages a file unless it exists with this content: a server that polls would read the model again."""
    return [] if path.is_file() and path.read_bytes() == content else [moves.file(path, content)]


def _remove_leftovers(folder: Path, names: Collection[str] | None = None) -> None:
    """Removes files of these names that a killed process left staged in a folder, which `open_repository` locks."""
    for path in list(folder.iterdir()):
        name = staged_for(path)
        if name and (names is None or name in names):
            remove(path)


def check_texts(actual: Mapping[str, Manifest], family: str, names: Mapping[str, ModelFolder]) -> None:
    """Refuses a new version of an encoder without that of the ensemble which chains it with its tokenizer.

    Raises:
        BuildError: such an ensemble is in the repository.
    """
    for name, manifest in actual.items():
        if manifest.family == family and manifest.part == ENSEMBLE and name not in names:
            raise BuildError(
                f"the repository has {name}, which chains the newest version of {family} with a tokenizer of its own; "
                "pass --tokenizer too, or remove the parts of the old text model"
            )
