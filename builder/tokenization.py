# SPDX-License-Identifier: Apache-2.0
"""Texts to token ids, through Hugging Face tokenizers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padfree.runtime import Metadata, SessionError
from padfree.runtime.texts import Text, largest_id, plain, saved_tokenizer

from .errors import BuildError

_log = logging.getLogger(__name__)

_TYPES = "token_type_ids"
_PADDING = ("[PAD]", "<pad>", "<|padding|>")
USUAL_SHARE = 0.9  # of a table's rows: tables are padded to multiples of up to 512, and keep rows for tokens to come


def tokenize(
    texts: Sequence[Text],
    tokenizer_file: Path,
    metadata: Metadata,
    *,
    truncate: bool = False,
    stand_in: bool = False,
) -> dict[str, list[Any]]:
    """Token ids of every text, and token types where the model has them as an input.

    Args:
        texts: any number of texts, or of pairs of texts.
        tokenizer_file: a tokenizer.json.
        metadata: the model's inputs and positions.
        truncate: cut texts to the model's positions.
        stand_in: the tokenizer is known to be smaller than the model's.

    Raises:
        BuildError: the file is no tokenizer, or another model's.
    """
    tokenizer = load_tokenizer(tokenizer_file, metadata, stand_in=stand_in)
    if truncate and metadata.max_positions is not None:
        tokenizer.enable_truncation(metadata.max_positions)
    encodings = tokenizer.encode_batch(list(texts))
    columns = {
        metadata.ids_input().original_name: [encoding.ids for encoding in encodings],
        _TYPES: [encoding.type_ids for encoding in encodings],
    }
    names = {item.original_name: item.name for item in metadata.token_inputs()}
    return {names[name]: column for name, column in columns.items() if name in names}


def load_tokenizer(file: Path, metadata: Metadata, *, pairs: bool = False, stand_in: bool = False) -> Any:
    """The tokenizer in a tokenizer.json, which pads nothing, and cuts nothing. For the arguments see check_tokenizer.

    Raises:
        BuildError: there is no such file, it is no tokenizer, or another model's: as check_tokenizer.
    """
    try:
        tokenizer = saved_tokenizer(file)
    except SessionError as error:
        raise BuildError(str(error)) from error
    padding = tokenizer.padding
    plain(tokenizer)
    check_tokenizer(tokenizer, file, metadata, pairs=pairs, pad_id=None if padding is None else padding["pad_id"])
    if not stand_in and (hint := _hint(tokenizer, metadata)):
        _log.warning("%s: %s", file, hint)
    return tokenizer


def check_tokenizer(
    tokenizer: Any, file: Path, metadata: Metadata, *, pairs: bool = False, pad_id: int | None = None
) -> None:
    """Refuses a tokenizer whose ids mean something else to the model than it means by them.

    A tokenizer may have fewer ids than the model's table has rows, which are often padded to a round number.

    Args:
        tokenizer: of the tokenizers library, without padding and truncation.
        file: where it comes from, for messages.
        metadata: the model's inputs.
        pairs: pairs of texts will come too.
        pad_id: what the file pads with; None looks for the tokens that are usual.

    Raises:
        BuildError: ids or token types that the model does not have; special tokens that it takes for padding, or a
            padding token that it does not.
    """
    ids = metadata.ids_input()
    advice = "pass the tokenizer.json that was saved with the model"
    token, largest = largest_id(tokenizer)
    if ids.limit is not None and largest >= ids.limit:
        raise BuildError(
            f"{file}: the tokenizer has ids up to {largest} ({token!r}), the model's '{ids.name}' takes "
            f"0..{ids.limit - 1}; {advice}"
        )
    encodings = _samples(tokenizer, pairs=pairs)
    specials = {
        name: item
        for encoding in encodings
        for name, item, special in zip(encoding.tokens, encoding.ids, encoding.special_tokens_mask, strict=True)
        if special
    }
    for name, item in specials.items():
        if item in ids.excluded or (ids.limit is not None and item >= ids.limit):
            why = f"{name!r} is {item}, which the model's '{ids.name}' {_refusal(item, ids.limit)}"
            raise BuildError(f"{file}: the tokenizer's {why}; {advice}")
    usual = (tokenizer.token_to_id(name) for name in _PADDING)
    found = pad_id if pad_id is not None else next((item for item in usual if item is not None), None)
    if ids.excluded and found is not None and found not in ids.excluded:
        shown = ", ".join(map(str, ids.excluded[:3]))
        raise BuildError(f"{file}: the tokenizer pads with {found}, the model takes {shown} for padding; {advice}")
    types = next((item for item in metadata.token_inputs() if item.original_name == _TYPES), None)
    given = max((value for encoding in encodings for value in encoding.type_ids), default=0)
    if types is not None and types.limit is not None and given >= types.limit:
        raise BuildError(
            f"{file}: the tokenizer gives {'pairs of ' * pairs}texts the type {given}, the model's '{_TYPES}' takes "
            f"0..{types.limit - 1}; {advice}"
        )


def _samples(tokenizer: Any, *, pairs: bool) -> list[Any]:
    """What becomes of short texts; nothing where the tokenizer has no token for them, as toys have none."""
    try:
        return [tokenizer.encode(""), tokenizer.encode("a"), *([tokenizer.encode("a", "a")] if pairs else [])]
    except Exception:  # the library raises plain Exception
        return []


def _refusal(item: int, limit: int | None) -> str:
    return "does not take" if limit is not None and item >= limit else "takes for padding"


def _hint(tokenizer: Any, metadata: Metadata) -> str:
    """Why the tokenizer may be another model's all the same; "" where nothing tells."""
    ids, size = metadata.ids_input(), tokenizer.get_vocab_size(with_added_tokens=True)
    if ids.limit is None or size >= USUAL_SHARE * ids.limit:
        return ""
    return f"the tokenizer has {size} tokens, the model's table {ids.limit} rows; make sure that they belong together"
