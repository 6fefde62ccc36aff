# SPDX-License-Identifier: Apache-2.0
"""Checks where commands write: no output overwrites an input, another output, or anything but a file.

Commands check before any work, so that nobody waits for a result that cannot be written, or loses an input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from padfree.contract.fields import decode
from padfree.contract.staging import kind_of
from padfree.onnx_tools.files import locations
from padfree.runtime import sidecar_path
from padfree.runtime.texts import tokenizer_path

from .errors import BuildError

NamedPath = tuple[str, "Path | None"]
"""What a path is, as the user calls it ("-o", "the model"), and the path, None where the user gave none."""

_MOST_LINE_BYTES = 1 << 20
_OF_SIDECARS = frozenset({"format", "interface", "engine"})


def check_destinations(
    outputs: Iterable[NamedPath], inputs: Iterable[NamedPath] = (), *, caches: Iterable[NamedPath] = ()
) -> None:
    """Refuses outputs that could not be written, or would destroy something.

    The files that belong to an input count as it does: a plan's metadata, the data files of a model, what lies in a
    folder. Two names of one file (links, other spellings) are one file.

    Args:
        outputs: files that the command writes.
        inputs: files and folders that it reads.
        caches: files that it reads and writes again: where they cannot be written, time is lost and no more.

    Raises:
        BuildError: the folder is missing or not writable; a folder, device or pipe stands there; an input, or another
            output, is the same file. The message says which option to change.
    """
    paths_by_name = [(what, path) for what, path in outputs if path is not None]
    for what, path in paths_by_name:
        check_destination(path, what)
    for what, cache in caches:
        if cache is not None:
            _check_kind(cache, f"{what} {cache}")
            paths_by_name.append((what, cache))
    inputs_read = list(_files(inputs, [path for _, path in paths_by_name if path.is_file()]))
    for number, (what, path) in enumerate(paths_by_name):
        for other, earlier in paths_by_name[:number]:
            if same_file(path, earlier):
                raise BuildError(
                    f"{what} {path} is the file that {other} writes; choose another path for one of the two"
                )
        for source, file in inputs_read:
            if same_file(path, file):
                raise BuildError(
                    f"{what} {path} is {source}, {file}, which would be lost; nothing was changed: choose another path"
                )


def check_destination(path: Path, what: str) -> None:
    """Refuses a path where no file can be written, whatever the command reads.

    Raises:
        BuildError: as check_destinations.
    """
    name = f"{what} {path}".strip()
    _check_kind(path, name)
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise BuildError(f"{name}: is not UTF-8, which other programs need; choose another path") from error
    if not path.parent.is_dir():
        raise BuildError(f"{name}: the folder {path.parent} does not exist; make it first: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise BuildError(f"{name}: the folder {path.parent} is not writable; choose another path")


def _check_kind(path: Path, name: str) -> None:
    try:
        kind = kind_of(path)
    except OSError as error:
        raise BuildError(f"{name}: cannot be looked at ({error.strerror}); choose another path") from error
    if kind == "a folder":
        raise BuildError(f"{name} is a folder; name a file in it, such as {path / 'result'}")
    if kind:
        raise BuildError(f"{name} is {kind}, which no file may replace; name a file")


def check_appended(path: Path, what: str) -> None:
    """Refuses to add a measurement's JSON line to a file that holds something else.

    Raises:
        BuildError: its first line is no measurement, or its last one is not complete.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        line = file.readline(_MOST_LINE_BYTES)
        file.seek(-1, os.SEEK_END)
        last = file.read()
    try:
        is_record = "date" in decode(line.decode())
    except (ValueError, TypeError):
        is_record = False
    if not is_record or last != b"\n":
        raise BuildError(
            f"{what} {path} holds something other than measurements (one JSON object per line); choose another file"
        )


def sidecar_destination(plan: Path) -> Path:
    """Where the metadata of a plan goes.

    Raises:
        BuildError: a file is there that is no plan's metadata, such as a model's config.json.
    """
    path = sidecar_path(plan)
    if not path.exists():
        return path
    if not holds_entries(path, _OF_SIDECARS):
        raise BuildError(
            f"-o {plan}: its metadata would go to {path}, a file that is no plan's metadata and would be lost; "
            "choose another name for the plan"
        )
    return path


def holds_entries(path: Path, names: Set[str]) -> bool:
    """Whether a file is a JSON object that has all of these entries."""
    try:
        return names <= set(decode(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, existing or not: through links, hard links, and other spellings."""
    if _real(one) == _real(other) or _identity(one) == _identity(other):
        return True
    try:
        return one.samefile(other)
    except OSError:
        return False


def _real(path: Path) -> Path:
    """The path without links; unlike Path.resolve, this also works for links that lead in a circle."""
    return Path(os.path.realpath(path))


def _identity(path: Path) -> Path:
    """The path in its folder, whose links are followed; the file itself may be a link."""
    return _real(path.parent) / path.name


def _files(inputs: Iterable[NamedPath], overwritten: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """(what it is, file) of everything that is read, as far as a file that would be `overwritten` could be it."""
    for what, path in inputs:
        if path is None:
            continue
        yield what, path
        if path.is_dir():
            yield from ((f"a file of {what}", file) for file in overwritten if _is_below(file, path))
            continue
        if tokenizer_path(path).is_file():
            yield f"the tokenizer of {what}", tokenizer_path(path)
        if holds_entries(sidecar_path(path), _OF_SIDECARS):
            yield f"the metadata of {what}", sidecar_path(path)
        homes = {path.parent, _real(path).parent}
        if path.is_file() and any(_is_below(file, home) for file in overwritten for home in homes):
            for name in locations(path):
                yield from ((f"a file of weights of {what}", home / name) for home in homes)


def _is_below(file: Path, folder: Path) -> bool:
    return _real(file).is_relative_to(_real(folder)) or _identity(file).is_relative_to(_real(folder))
