# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model's texts: the one that it keeps beside it, or one that the user names. All doors ask here."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from padfree.contract.metadata import Metadata

from ..errors import SessionError
from .checks import check_tokenizer
from .json_files import read_bytes
from .tokenizer_file import TokenizerFile, parse, plain, read_tokenizer_file

TOKENIZER_SUFFIX = ".tokenizer.json"


def tokenizer_path(model: Path) -> Path:
    """Where the tokenizer of a plan or .onnx file lies: model.plan -> model.plan.tokenizer.json."""
    return model.with_name(model.name + TOKENIZER_SUFFIX)


def text_source(
    model: Path, metadata: Metadata, tokenizer: Path | None = None, *, pairs: bool | None = None
) -> TokenizerFile:
    """The tokenizer of a model's texts, with the end that long ones lose and whether they have token types.

    Args:
        model: the plan or .onnx file.
        metadata: the model's own.
        tokenizer: a tokenizer.json, instead of the one that the model keeps; what lies beside it is read too.
        pairs: whether pairs of texts will come (default: what the model's folder said).

    Raises:
        SessionError: there is none, or it is another model's.
    """
    info = metadata.text
    if tokenizer is None:
        file, content = tokenizer_path(model), kept_content(model, metadata)
        assert info is not None  # kept_content refuses models without it
        plain(parse(content, file))
        own = TokenizerFile(file, content, info.truncation_side, info.token_types, template=info.template)
        return replace(own, late=info.late)
    tokenizer_file = read_tokenizer_file(tokenizer, rows=metadata.ids_input().limit)
    if tokenizer_file.token_types is None:  # nothing lies beside it, and what the model's folder said holds
        side = tokenizer_file.truncation_side if info is None else info.truncation_side
        tokenizer_file = replace(tokenizer_file, truncation_side=side, token_types=info is None or info.token_types)
    tokenizer_object = parse(tokenizer_file.content, tokenizer)
    padding = tokenizer_object.padding
    check_tokenizer(
        plain(tokenizer_object),
        tokenizer,
        metadata,
        pairs=pairs if pairs is not None else info is not None and info.takes_pairs,
        pad_id=None if padding is None else padding["pad_id"],
        token_types=bool(tokenizer_file.token_types),
    )
    return tokenizer_file if info is None else replace(tokenizer_file, template=info.template, late=info.late)


def kept_content(model: Path, metadata: Metadata) -> bytes:
    """What the tokenizer.json holds that a plan or .onnx file keeps beside it, checked.

    Raises:
        SessionError: the model keeps none, or it is not there, or another one.
    """
    info = metadata.text
    if info is None or info.tokenizer_sha256 is None:
        raise SessionError(
            f"{model}: keeps no tokenizer, as models that were made from a folder do; pass --tokenizer "
            "tokenizer.json (beside the model on the Hub), or build it from the model's folder"
        )
    file = tokenizer_path(model)
    content = read_bytes(file)
    if hashlib.sha256(content).hexdigest() != info.tokenizer_sha256:
        raise SessionError(
            f"{file}: not the tokenizer that the model was made with; copy the file that was written beside it, or "
            "build the model again"
        )
    return content
