# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a folder's model keeps beside it: its bytes, checked against the folder's config.json."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

from padfree.contract.installation import install_command
from padfree.runtime.text import TYPES, TokenizerFile, largest_id, read_tokenizer_file
from tokenizers import Tokenizer, normalizers

from ..errors import BuildError
from ..tokenization import USUAL_SHARE, as_build_errors
from .folder import TOKENIZER_CONFIG, Folder
from .objects import Entries

_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")


def folder_tokenizer(folder: Folder) -> TokenizerFile | None:
    """The tokenizer to keep; None where the folder has none, and transformers is not installed to make one.

    Raises:
        BuildError: the tokenizer is another model's, the file is damaged, or a setting is one that padfree does not
            follow.
    """
    with as_build_errors():
        source = (
            _convert(folder)
            if folder.tokenizer is None
            else read_tokenizer_file(folder.tokenizer, folder.encoder, folder.config.vocab_size)
        )
        if source is None:
            return None
        tokenizer = source.tokenizer()
    _check(tokenizer, folder)
    if folder.lower_case and not _writes_small(source.content):
        return replace(source, content=_with_lower_case(source.content))
    return source


def tokenizer_notes(tokenizer: TokenizerFile, folder: Folder) -> tuple[str, ...]:
    """Notes about a folder's tokenizer; about token types only where pairs may come and the model has several types."""
    kinds = Entries(folder.config.file).raw.get("type_vocab_size")
    no_types = isinstance(kinds, int) and kinds < 2
    return tokenizer.notes + (tokenizer.types_notes if folder.text.may_take_pairs and not no_types else ())


def tokenizer_advice(folder: Folder) -> str:
    """Part of a sentence: what to do where a folder has no tokenizer.json; "" where nothing helps."""
    vocabularies = _vocabularies(folder)
    if not vocabularies:
        return ""
    return f", only {', '.join(vocabularies)}, of which transformers makes one ({install_command('export')})"


def _vocabularies(folder: Folder) -> list[str]:
    return [name for name in _VOCABULARIES if (folder.encoder / name).is_file()]


def _convert(folder: Folder) -> TokenizerFile | None:
    """The tokenizer that transformers makes of other files; None where it is not installed, or makes none."""
    if not _vocabularies(folder) or importlib.util.find_spec("transformers") is None:
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder.encoder), local_files_only=True, trust_remote_code=False)
        content = str(tokenizer.backend_tokenizer.to_str()).encode()
    except Exception:  # of many kinds, and none tells more than that there is no tokenizer
        return None
    return TokenizerFile(folder.path, content, str(tokenizer.truncation_side), TYPES in tokenizer.model_input_names)


def _check(tokenizer: Tokenizer, folder: Folder) -> None:
    """Refuses the tokenizer of another model."""
    config, rows, file = folder.config, folder.config.vocab_size, folder.tokenizer or folder.path
    token, largest = largest_id(tokenizer)
    if rows is not None and largest >= rows:
        raise BuildError(
            f"{file}: has ids up to {largest} ({token!r}), config.json says vocab_size {rows}: it is "
            "another model's; download the folder again"
        )
    pad = _pad_id(tokenizer, folder)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    alike = rows is None or size >= USUAL_SHARE * rows
    if pad is not None and config.pad_id is not None and pad != config.pad_id and not alike:
        raise BuildError(
            f"{file}: pads with {pad}, config.json with {config.pad_id} (pad_token_id), and has {size} "
            f"tokens where the model has rows for {rows}: it is another model's; download the folder again"
        )


def _pad_id(tokenizer: Tokenizer, folder: Folder) -> int | None:
    """The id of the token that tokenizer_config.json calls the padding token."""
    token_name = Entries(folder.encoder / TOKENIZER_CONFIG).raw.get("pad_token")
    name = token_name.get("content") if isinstance(token_name, dict) else token_name
    pad_id: int | None = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return pad_id


def _writes_small(content: bytes) -> bool:
    """Whether a tokenizer lower-cases texts itself, in its first normalisers."""
    normalizer: dict[str, Any] = json.loads(content).get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") == "Lowercase" or step.get("lowercase") is True for step in steps)


def _with_lower_case(content: bytes) -> bytes:
    """The same tokenizer with a lower-casing normaliser in front."""
    tokenizer = Tokenizer.from_str(content.decode())
    first = normalizers.Lowercase()
    rest = tokenizer.normalizer
    tokenizer.normalizer = first if rest is None else normalizers.Sequence([first, rest])
    return str(tokenizer.to_str(pretty=False)).encode()
