# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a folder's model keeps beside it: its bytes, held against the folder's config.json."""

from __future__ import annotations

import json
from typing import Any

from padfree.runtime.errors import SessionError
from padfree.runtime.texts import largest_id, read_tokenizer
from tokenizers import Tokenizer, normalizers

from ..errors import BuildError
from .folder import TOKENIZER_CONFIG, Folder
from .objects import Entries

_USUAL_SHARE = 0.9  # of a table's rows, as in builder/tokenization.py


def tokenizer_bytes(folder: Folder) -> bytes | None:
    """The tokenizer.json to be kept; None where the folder has none, and transformers is not there to make one.

    Raises:
        BuildError: the tokenizer is another model's, or the file is damaged.
    """
    if folder.tokenizer is None:
        return None
    try:
        tokenizer = read_tokenizer(folder.tokenizer)
    except SessionError as error:
        raise BuildError(str(error)) from error
    _check(tokenizer, folder)
    content = folder.tokenizer.read_bytes()
    if folder.lower_case and not _writes_small(content):
        return _with_lower_case(folder.tokenizer.read_text(encoding="utf-8"))
    return content


def _check(tokenizer: Tokenizer, folder: Folder) -> None:
    """Refuses the tokenizer of another model."""
    config, rows = folder.config, folder.config.vocab_size
    token, largest = largest_id(tokenizer)
    if rows is not None and largest >= rows:
        raise BuildError(
            f"{folder.tokenizer}: has ids up to {largest} ({token!r}), config.json says vocab_size {rows}: it is "
            "another model's; download the folder again"
        )
    pad = _pad_id(tokenizer, folder)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    alike = rows is None or size >= _USUAL_SHARE * rows
    if pad is not None and config.pad_id is not None and pad != config.pad_id and not alike:
        raise BuildError(
            f"{folder.tokenizer}: pads with {pad}, config.json with {config.pad_id} (pad_token_id), and has {size} "
            f"tokens where the model has rows for {rows}: it is another model's; download the folder again"
        )


def _pad_id(tokenizer: Tokenizer, folder: Folder) -> int | None:
    """The id of the token that tokenizer_config.json calls the padding token."""
    named = Entries(folder.encoder / TOKENIZER_CONFIG).raw.get("pad_token")
    name = named.get("content") if isinstance(named, dict) else named
    found: int | None = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return found


def _writes_small(content: bytes) -> bool:
    """Whether a tokenizer writes texts small by itself, at the top of its normalisers."""
    normalizer: dict[str, Any] = json.loads(content).get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") == "Lowercase" or step.get("lowercase") is True for step in steps)


def _with_lower_case(text: str) -> bytes:
    """The same tokenizer with a normaliser in front that writes texts small."""
    tokenizer = Tokenizer.from_str(text)
    first = normalizers.Lowercase()
    rest = tokenizer.normalizer
    tokenizer.normalizer = first if rest is None else normalizers.Sequence([first, rest])
    return str(tokenizer.to_str(pretty=False)).encode()
