# SPDX-License-Identifier: Apache-2.0
"""What a file is that is given as a model, but is none: told by its first bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


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
