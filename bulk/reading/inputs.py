# SPDX-License-Identifier: Apache-2.0
"""Finds inputs, identifies them, and checks whether they have changed."""

from __future__ import annotations

import codecs
import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.contract.data_files import PARQUET, ROW_KINDS, STREAM, is_archive, is_stream, kind_of, suffixes_of
from pyarrow.fs import FileType

from ..errors import BulkError
from ..locations import SCHEME, Location
from ..manifest import InputFile

BLOCK_BYTES, BEGINNING_BYTES = 1 << 22, 1 << 20
_FOOTER_TAIL = struct.Struct("<I4s")
_PARQUET_MAGIC = b"PAR1"
_ADVICE_ARCHIVE = "unpack it first, because its rows could not be divided"


@dataclass(frozen=True)
class SourceFile:
    """A file that is to be read: where it lies, and how it was given."""

    root: str
    location: Location
    format: str
    size: int
    mtime_ns: int

    def beginning(self) -> bytes:
        """The first bytes of a file of texts, with the names of columns in them.

        Raises:
            BulkError: they are those of UTF-16, in which line ends are other bytes.
        """
        with self.location.open() as stream:
            beginning = bytes(stream.read(BEGINNING_BYTES))
        if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise BulkError(
                f"{self.location.shown_path}: begins like a file in UTF-16, allowed: UTF-8; convert it with iconv -f "
                "UTF-16 -t UTF-8"
            )
        return beginning


def find(sources: Sequence[str]) -> list[SourceFile]:
    """The files at paths, folders and URIs, in the order given, those of a folder sorted by name.

    Folders give all files of a known kind, those of subfolders too, except names that begin with a dot or underscore.

    Raises:
        BulkError: nothing is there, or a file is of an unknown kind or given twice.
    """
    files: list[SourceFile] = []
    for name in sources:
        location = Location.of(name)
        root = name if SCHEME in name else location.path
        info = location.info()
        if info.type == FileType.Directory:
            inside = list(_in_folder(root, location))
            if not inside:
                raise BulkError(
                    f"{name}: no files with {suffixes_of(*ROW_KINDS)} in this folder; pass one that holds some"
                )
            files += inside
        elif info.type == FileType.File:
            files.append(_one(root, location, info))
        elif SCHEME not in name and is_stream(Path(name)):
            raise BulkError(f"{name}: {STREAM}")
        else:
            raise BulkError(f"{name}: no such file or folder; check the path")
    seen: set[tuple[str, str]] = set()
    for file in files:
        key = (file.location.filesystem.type_name, file.location.path)
        if key in seen:
            raise BulkError(
                f"{file.location.shown_path}: given twice, and its rows would be done twice; leave one of them out"
            )
        seen.add(key)
    return files


def identity(file: SourceFile, rows: int, columns: tuple[str, ...]) -> InputFile:
    """What the manifest says about a file."""
    etag = "" if file.location.is_local else file.location.etag()
    digest = "" if etag else content_digest(file.location, file.format)
    return InputFile(file.root, file.location.path, file.format, file.size, file.mtime_ns, etag, digest, rows, columns)


def check_unchanged(recorded_file: InputFile) -> None:
    """Refuses an input that is no longer what the manifest says; a copy with another time but the same bits passes.

    Raises:
        BulkError: it is gone, or another one.
    """
    location = recorded_file.location()
    info = location.info()
    reason = ""
    if info.type != FileType.File:
        reason = "is gone"
    elif info.size != recorded_file.size:
        reason = f"had {recorded_file.size} bytes and has {info.size} now"
    elif recorded_file.etag and location.etag() != recorded_file.etag:
        reason = "is another object in the store now"
    elif (
        recorded_file.digest
        and mtime_ns(info) != recorded_file.mtime_ns
        and content_digest(location, recorded_file.format) != recorded_file.digest
    ):
        reason = "has another content now"
    if reason:
        raise BulkError(
            f"{location.shown_path}: the input {reason}, and part of the result is made from what it was; restore it, "
            "or start in another output folder"
        )


def content_digest(location: Location, kind: str) -> str:
    """SHA-256 of a file; of a parquet file, only of its footer, which says where every page lies."""
    digest = hashlib.sha256()
    with location.open() as stream:
        if kind == PARQUET:
            digest.update(_footer(stream, location))
        else:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def mtime_ns(info: Any) -> int:
    """When a file was changed, in ns since 1970; 0 if a store does not say."""
    time_ns = getattr(info, "mtime_ns", None)
    return 0 if time_ns is None else int(time_ns)


def _footer(stream: Any, location: Location) -> bytes:
    size = int(stream.size())
    tail = bytes(stream.read_at(_FOOTER_TAIL.size, max(0, size - _FOOTER_TAIL.size)))
    length, magic = _FOOTER_TAIL.unpack(tail) if len(tail) == _FOOTER_TAIL.size else (0, b"")
    if magic != _PARQUET_MAGIC or length + _FOOTER_TAIL.size > size:
        raise BulkError(f"{location.shown_path}: not a whole parquet file; copy it again")
    return bytes(stream.read_at(length, size - _FOOTER_TAIL.size - length))


def _in_folder(root: str, folder: Location) -> Iterator[SourceFile]:
    for info in folder.entries(recursive=True):
        below = info.path[len(folder.path) :].split("/")
        hidden = any(part.startswith((".", "_")) for part in below)
        if info.type == FileType.File and not hidden and _format(info.path):
            yield _one(root, folder.at(info.path), info)


def _one(root: str, location: Location, info: Any) -> SourceFile:
    kind = _format(location.path)
    if not kind:
        advice = _ADVICE_ARCHIVE if is_archive(location.path) else "rename or convert it"
        raise BulkError(f"{location.shown_path}: unknown kind of file, allowed: {suffixes_of(*ROW_KINDS)}; {advice}")
    size = int(info.size)
    return SourceFile(root, location, kind, size, mtime_ns(info))


def _format(path: str) -> str:
    kind = kind_of(path)
    return kind if kind in ROW_KINDS else ""
