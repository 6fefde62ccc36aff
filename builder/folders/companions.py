# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that goes with a model: checked against it, and written beside what is made of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from padfree.runtime import Metadata, SessionError
from padfree.runtime.texts import read_tokenizer, tokenizer_path

from ..errors import BuildError
from ..tokenization import load_tokenizer


def kept_files(model: Path, output: Path, metadata: Metadata) -> list[tuple[Path, bytes]]:
    """What is to be written beside `output`, which is made of `model`: its tokenizer, or nothing where it has none.

    Args:
        model: the file with the tokenizer beside it.
        output: the plan or .onnx file.
        metadata: the rewritten model's.

    Raises:
        BuildError: the tokenizer is not there, not the one that the model was made with, or another model's.
    """
    if metadata.text is None or metadata.text.tokenizer_sha256 is None:
        return []
    file = tokenizer_path(model)
    if not file.is_file():
        raise BuildError(
            f"{model}: its tokenizer {file.name} is missing; copy it along, or start from the folder again"
        )
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != metadata.text.tokenizer_sha256:
        raise BuildError(
            f"{file}: not the tokenizer that {model.name} was made with; copy it again, or start from the folder again"
        )
    load_tokenizer(file, metadata, pairs=metadata.text.takes_pairs)
    return [(tokenizer_path(output), content)]


def tokenizer_destination(output: Path) -> Path:
    """Where the tokenizer goes that is kept beside a plan or .onnx file.

    Raises:
        BuildError: a file is there that is no tokenizer.
    """
    path = tokenizer_path(output)
    if path.is_file():
        try:
            read_tokenizer(path)
        except SessionError as error:
            raise BuildError(
                f"-o {output}: its tokenizer would go to {path}, a file that is no tokenizer and would be "
                "lost; choose another name"
            ) from error
    return path
