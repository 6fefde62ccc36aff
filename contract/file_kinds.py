# SPDX-License-Identifier: Apache-2.0
"""What stands at a path that is given as a model's, but is none: told by the file system, or by its first bytes."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .os_errors import not_readable


class FileKind(NamedTuple):
    """A kind of file.

    what: what is said of such a file, after its name.
    advice: what to do, for whoever takes any model.
    """

    what: str
    advice: str


_LINK_MARK = b"version https://git-lfs"
LINK_BYTES = len(_LINK_MARK)
"""How much of a file tells whether it is a link of git lfs."""
LINK = FileKind("is a link of git lfs, not the file itself", "fetch it: git lfs pull")
EMPTY = FileKind("is empty", "export, build or copy it again")
_KINDS = {
    _LINK_MARK: LINK,
    b"GGUF": FileKind(
        "is a GGUF file, which has weights without the model's graph",
        "give the Hugging Face folder that it was made from",
    ),
    b"<": FileKind("is a web page or XML, not a model", "download it again"),
}
"""By what such files begin with. ONNX models and plans begin with none of these."""


_MODES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def kind_of_mode(mode: int) -> str:
    """What has this st_mode, such as "a device"; "" for a file."""
    return next((kind for is_kind, kind in _MODES if is_kind(mode)), "")


def refuse_special(path: Path, error: Callable[[str], Exception]) -> None:
    """Raises an error that `error` makes where neither a file nor a folder stands, unless there is nothing at all.

    That is a pipe, a device, a socket, a symbolic link that leads nowhere or in a circle, or what may not be looked at.
    """
    try:
        kind = kind_of_mode(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink():
            return
        kind = f"a symbolic link to '{path.readlink()}', which does not exist"
    except OSError as reason:  # links in a circle, a folder that may not be entered
        raise error(f"{path}: {not_readable(reason, 'check its path')}") from reason
    if kind not in ("", "a folder"):
        raise error(f"{path}: is {kind}; give the path of a file")


def refuse_link(beginning: bytes, path: Path, error: Callable[[str], Exception]) -> None:
    """Raises an error that `error` makes, if a file begins as a link of git lfs does."""
    if beginning.startswith(_LINK_MARK):
        raise error(f"{path}: {LINK.what}; {LINK.advice}")


def other_kind(path: Path) -> FileKind | None:
    """The kind of a file that is neither an ONNX model nor a plan; None where its beginning does not tell."""
    try:
        with path.open("rb") as file:
            beginning = file.read(max(map(len, _KINDS)))
    except OSError:  # whoever reads the model says so
        return None
    if not beginning:
        return EMPTY
    return next((kind for mark, kind in _KINDS.items() if beginning.startswith(mark)), None)
