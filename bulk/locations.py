# SPDX-License-Identifier: Apache-2.0
"""Files and folders on any filesystem that pyarrow knows; a file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from padfree.contract.staging import staged_for, write_atomically
from pyarrow import fs

from .errors import BulkError

T = TypeVar("T")
SCHEME = "://"


@dataclass(frozen=True)
class Location:
    """A path on a filesystem.

    Attributes:
        filesystem: one of pyarrow's; it travels to other processes and machines.
        path: on it, absolute.
        shown_path: the path or URI as the user gave it.
    """

    filesystem: Any
    path: str
    shown_path: str

    @classmethod
    def of(cls, text: str) -> Location:
        """A local path, or a URI as `s3://bucket/folder`.

        Raises:
            BulkError: the URI is of no filesystem that pyarrow reads, or has a secret in it.
        """
        shown_text = text.partition("?")[0] if SCHEME in text else text
        if SCHEME in text and urlsplit(text).username:
            raise BulkError(
                f"{shown_text.partition(SCHEME)[0]}{SCHEME}...: the URI holds a key, which would be written into the "
                "manifest; give keys in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        try:
            if SCHEME in text:
                filesystem, path = fs.FileSystem.from_uri(text)
            else:
                filesystem, path = fs.LocalFileSystem(), str(Path(text).resolve())
        except (ValueError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
            raise BulkError(
                f"{shown_text}: no filesystem for it ({error}); pass a local path, or a URI that pyarrow reads, such "
                "as s3://bucket/folder"
            ) from error
        return cls(filesystem, path.rstrip("/") or "/", shown_text.rstrip("/") or "/")

    @property
    def is_local(self) -> bool:
        """Whether it lies in this machine's own tree of files."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def child(self, name: str) -> Location:
        """A file or folder in this folder."""
        return Location(self.filesystem, f"{self.path}/{name}", f"{self.shown_path}/{name}")

    def contains(self, other: Location) -> bool:
        """Whether the other is this location, or lies in it."""
        same = self.filesystem.equals(other.filesystem)
        return bool(same) and f"{other.path}/".startswith(f"{self.path}/")

    def info(self) -> Any:
        """pyarrow's FileInfo."""
        return self._attempt("looked at", lambda: self.filesystem.get_file_info(self.path))

    def entries(self, *, recursive: bool = False) -> list[Any]:
        """FileInfo of what is in the folder, by path; nothing where there is no folder."""
        selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)

        def list_entries() -> list[Any]:
            return sorted(self.filesystem.get_file_info(selector), key=lambda info: str(info.path))

        return self._attempt("listed", list_entries)

    def at(self, path: str) -> Location:
        """Another path of the same filesystem, such as that of an entry of this folder."""
        return Location(self.filesystem, path, self.shown_path + path[len(self.path) :] if self._below(path) else path)

    def open(self) -> Any:
        """A file to read at any offset."""
        return self._attempt("read", lambda: self.filesystem.open_input_file(self.path))

    def read(self) -> bytes:
        """All of a file."""

        def whole() -> bytes:
            with self.filesystem.open_input_stream(self.path) as stream:
                return bytes(stream.read())

        return self._attempt("read", whole)

    def etag(self) -> str:
        """What an object store says about a file's content; "" where there is no such thing."""

        def ask() -> str:
            with self.filesystem.open_input_stream(self.path) as stream:
                metadata = {_text(key).lower(): _text(value) for key, value in (stream.metadata() or {}).items()}
            return metadata.get("etag", "").strip('"')

        return self._attempt("read", ask)

    def make_folder(self) -> None:
        """Makes the folder, and those above it, unless it is there.

        Raises:
            BulkError: a file is there, or it cannot be made.
        """
        if self.is_local and Path(self.path).is_file():
            raise BulkError(f"{self.shown_path}: is a file, and results are a folder of files; pass a new folder")
        self._attempt("made", lambda: self.filesystem.create_dir(self.path, recursive=True))

    def write(self, content: Any) -> None:
        """Writes a file as a whole: on local disks aside and then renamed, elsewhere with one put.

        Args:
            content: anything with the buffer protocol.

        Raises:
            BulkError: it cannot be written, or its folder has become a link since the path was made; nothing has
                changed.
        """

        def put() -> None:
            if self.is_local:
                self._check_no_link()
                write_atomically(Path(self.path), lambda stream: stream.write(content))
                return
            # One write: nothing of this program can fail between two of them and leave a part.
            stream = self.filesystem.open_output_stream(self.path)
            stream.write(content)
            stream.close()

        self._attempt("written", put)

    def _check_no_link(self) -> None:
        """Refuses a folder that leads elsewhere now: links were followed when the path was made."""
        folder = Path(self.path).parent
        real_folder = folder.resolve()
        if real_folder != folder:
            raise BulkError(
                f"{folder}: has become a link to {real_folder} since the command began, and nothing is written there; "
                "put the folder back, then run the same command again: it goes on where it ended"
            )

    def remove_partial(self, beginnings: tuple[str, ...]) -> None:
        """Removes what processes that were killed left of files with names that begin so."""
        if not self.is_local:
            return
        for path in Path(self.path).glob(".*"):
            if staged_for(path).startswith(beginnings):
                path.unlink(missing_ok=True)

    def _below(self, path: str) -> bool:
        return path.startswith(f"{self.path}/")

    def _attempt(self, done: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            reason = error.strerror or str(error).strip().splitlines()[0]
            advice = "check that it is there, and your permissions"
            if done in ("written", "made"):
                advice = "check permissions and room, then run the same command again: it goes on where it ended"
            raise BulkError(f"{self.shown_path}: cannot be {done} ({reason}); {advice}") from error
        except UnicodeError as error:  # pyarrow knows no others
            raise BulkError(
                f"{ascii(self.shown_path)[1:-1]}: its name, or that of a file in it, is not UTF-8; rename it"
            ) from error


def _text(value: bytes | str) -> str:
    """What pyarrow gives as bytes in some versions."""
    return value if isinstance(value, str) else value.decode(errors="replace")
