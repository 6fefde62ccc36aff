# SPDX-License-Identifier: Apache-2.0
"""The model of a job: what it is for, what a batch may hold, and that it is the same file everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

from padfree.contract.metadata import Metadata
from padfree.contract.names import is_onnx
from padfree.runtime import Budget, Session, budget_of, file_digest, open_plan
from padfree.runtime.text import TokenizerFile, read_tokenizer_file

from .errors import BulkError
from .manifest import Model


def look(path: Path) -> tuple[Metadata, Budget]:
    """What a plan or packed file says about itself, and what one run takes; needs no GPU.

    Raises:
        padfree.runtime.SessionError: it is damaged or missing.
    """
    if not is_onnx(path):
        metadata = open_plan(path)
        return metadata, budget_of(metadata)
    with Session(path, cpu_threads=1) as session:
        return session.metadata, session.budget


def identify(path: Path, tokenizer: bytes) -> Model:
    """What the manifest says about the model's file, and about what its tokenizer's file held."""
    return Model(path.name, _file_digest(path), hashlib.sha256(tokenizer).hexdigest())


def check_model(recorded_model: Model, path: Path) -> None:
    """Refuses files that are not those of the manifest.

    Raises:
        BulkError: another model.
    """
    _check(path, _file_digest(path), recorded_model.sha256)


def read_checked_tokenizer(recorded_model: Model, file: Path, rows: int | None) -> TokenizerFile:
    """The manifest's tokenizer, with the very bytes that were compared.

    Args:
        recorded_model: what the manifest says.
        file: the tokenizer.json; what lies beside it counts too.
        rows: rows of the model's table of ids; None: not known.

    Raises:
        BulkError: another tokenizer. padfree.runtime.SessionError: none.
    """
    tokenizer_file = read_tokenizer_file(file, rows=rows)
    _check(file, hashlib.sha256(tokenizer_file.content).hexdigest(), recorded_model.tokenizer_sha256)
    return tokenizer_file


def _check(file: Path, actual: str, digest: str) -> None:
    if actual != digest:
        raise BulkError(
            f"{file}: is not the file that the result was begun with; copy that one there on every machine, or "
            "start in another output folder"
        )


def _file_digest(path: Path) -> str:
    """SHA-256 of a file. Weights that lie beside an .onnx file have their digest in the name by which it calls them.

    Raises:
        BulkError: it cannot be read.
    """
    try:
        return file_digest(path)
    except OSError as error:
        raise BulkError(f"{path}: cannot be read ({error.strerror}); check the path on this machine") from error
