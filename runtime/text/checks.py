# SPDX-License-Identifier: Apache-2.0
"""Whether a tokenizer and a model belong together, as far as their ids tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from padfree.contract.metadata import Metadata

from ..errors import SessionError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_PADDING = ("[PAD]", "<pad>", "<|padding|>")
_ADVICE = "pass the tokenizer.json that was saved with the model"


def largest_id(tokenizer: Tokenizer) -> tuple[str, int]:
    """The token with the largest id of a vocabulary, added tokens among them, and that id; -1 where there is none."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocabulary.items(), key=lambda item: item[1], default=("", -1))


def check_tokenizer(
    tokenizer: Tokenizer,
    file: Path,
    metadata: Metadata,
    *,
    pairs: bool,
    pad_id: int | None,
    token_types: bool,
) -> None:
    """Refuses a tokenizer whose ids do not mean the same to the model.

    A tokenizer may have fewer ids than the model's table has rows, which are often padded to a round number.

    Args:
        tokenizer: of the tokenizers library, without padding and truncation.
        file: where it comes from, for messages.
        metadata: the model's inputs.
        pairs: pairs of texts will come too.
        pad_id: what the file pads with; None looks for the tokens that are usual.
        token_types: whether its types are given to the model.

    Raises:
        SessionError: ids or token types that the model does not have; special tokens that it takes for padding, or a
            padding token that it does not.
    """
    ids = metadata.ids_input()
    token, largest = largest_id(tokenizer)
    if ids.limit is not None and largest >= ids.limit:
        raise SessionError(
            f"{file}: the tokenizer has ids up to {largest} ({token!r}), the model's '{ids.name}' takes "
            f"0..{ids.limit - 1}; {_ADVICE}: this one is another model's"
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
            raise SessionError(f"{file}: the tokenizer's {why}; {_ADVICE}")
    usual = [number for number in map(tokenizer.token_to_id, _PADDING) if number is not None]
    paddings = usual if pad_id is None else [pad_id]  # a vocabulary may have several of the usual ones, as MPNet's
    if ids.excluded and paddings and not set(paddings) & set(ids.excluded):
        ids_text = ", ".join(map(str, ids.excluded[:3]))
        pads = " or ".join(map(str, paddings))
        raise SessionError(f"{file}: the tokenizer pads with {pads}, the model takes {ids_text} for padding; {_ADVICE}")
    types = metadata.types_input() if token_types else None
    highest_type = max((value for encoding in encodings for value in encoding.type_ids), default=0)
    if types is not None and types.limit is not None and highest_type >= types.limit:
        raise SessionError(
            f"{file}: the tokenizer gives {'pairs of ' * pairs}texts the type {highest_type}, the model's "
            f"'{types.original_name}' takes 0..{types.limit - 1}; {_ADVICE}"
        )


def _samples(tokenizer: Tokenizer, *, pairs: bool) -> list[Encoding]:
    """What becomes of short texts; nothing where the tokenizer has no token for them, as toys have none."""
    try:
        return [tokenizer.encode(""), tokenizer.encode("a"), *([tokenizer.encode("a", "a")] if pairs else [])]
    except Exception:  # the library raises plain Exception
        return []


def _refusal(item: int, limit: int | None) -> str:
    return "does not take" if limit is not None and item >= limit else "takes for padding"
