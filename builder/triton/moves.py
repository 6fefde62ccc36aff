# SPDX-License-Identifier: Apache-2.0
"""Changes to a folder that others read meanwhile: all of them happen, or none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from padfree.contract.staging import partial_path, stage


class Moves:
    """Stages files and folders beside their destinations, then moves them; an error or a signal undoes all moves.

    What is replaced is kept under a hidden name until the end. A file always exists meanwhile; a folder is missing
    between two renames.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._aside: list[Path] = []
        self._new_folders: list[Path] = []

    def folder(self, path: Path) -> None:
        """Makes a folder, unless it is there."""
        if not path.is_dir():
            self._new_folders.append(path)
            path.mkdir(exist_ok=True)

    def aside(self, path: Path) -> Path:
        """A hidden name beside `path`, for what is to be moved there; what remains of it is removed at the end."""
        aside_path = partial_path(path)
        self._aside.append(aside_path)
        return aside_path

    def file(self, path: Path, content: bytes) -> Callable[[], None]:
        """Stages a file; the function that it returns moves it into place."""
        stage_path = stage(path, lambda stream: stream.write(content))
        self._aside.append(stage_path)
        return partial(self.into, stage_path, path)

    def into(self, stage_path: Path, path: Path) -> None:
        """Moves what was staged into its place."""
        if path.is_dir() and not path.is_symlink():
            self.away(path)
        elif os.path.lexists(path):
            backup = self.aside(path)
            shutil.copy2(path, backup, follow_symlinks=False)
            self._undo.append(partial(backup.replace, path))
            stage_path.replace(path)
            return
        self._undo.append(partial(_back, path, stage_path))
        stage_path.rename(path)

    def away(self, path: Path) -> None:
        """Removes a file or folder."""
        backup = self.aside(path)
        self._undo.append(partial(_back, backup, path))
        path.rename(backup)

    def __enter__(self) -> Moves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            for undo in reversed(self._undo):
                with contextlib.suppress(OSError):
                    undo()
        for path in self._aside:
            remove(path)
        for path in reversed(self._new_folders) if kind is not None else ():
            with contextlib.suppress(OSError):
                path.rmdir()  # unless somebody put something there meanwhile


def remove(path: Path) -> None:
    """Removes a file, link or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _back(path: Path, destination: Path) -> None:
    """Undoes a rename, if it was done."""
    if os.path.lexists(path) and not os.path.lexists(destination):
        path.rename(destination)
