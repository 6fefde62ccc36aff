# SPDX-License-Identifier: Apache-2.0
"""Texts to token ids, through Hugging Face tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padfree.runtime import Metadata

from .errors import BuildError


def tokenize(
    texts: Sequence[str], tokenizer_file: Path, metadata: Metadata, *, truncate: bool = False
) -> dict[str, list[Any]]:
    """Token ids of every text, and token types where the model has them as an input.

    Args:
        texts: any number of texts.
        tokenizer_file: a tokenizer.json.
        metadata: the model's inputs and positions.
        truncate: cut texts to the model's positions.

    Raises:
        BuildError: the file is no tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_file)
    tokenizer.no_padding()
    if truncate and metadata.max_positions is not None:
        tokenizer.enable_truncation(metadata.max_positions)
    else:
        tokenizer.no_truncation()
    encodings = tokenizer.encode_batch(list(texts))
    columns = {
        metadata.ids_input().name: [encoding.ids for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    names = {item.name for item in metadata.token_inputs()}
    return {name: column for name, column in columns.items() if name in names}


def load_tokenizer(file: Path) -> Any:
    """The tokenizer in a tokenizer.json.

    Raises:
        BuildError: there is no such file, or it is no tokenizer.
    """
    from tokenizers import Tokenizer

    if not file.is_file():
        raise BuildError(f"{file}: no such tokenizer; pass the tokenizer.json that belongs to the model")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise BuildError(
            f"{file}: not a tokenizer file ({error}); pass the tokenizer.json that belongs to the model"
        ) from error
