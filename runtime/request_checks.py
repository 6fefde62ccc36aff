# SPDX-License-Identifier: Apache-2.0
"""What a request must be: its inputs, their lengths and values. Checked on the host, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata
from padfree.contract.text_inputs import PROMPT_LENGTH, ZERO_WHEN_MISSING

from .errors import SessionError
from .rows import INT32_MAX, Int32Array, TokenArray, bounds_of

# For a value outside of its table: of an input with several numbers per token, and of ids.
_ADVICE = (
    "scale the numbers as the model was trained with them",
    "tokenise with the tokenizer that belongs to this model",
)


def check_token_count(name: str, count: int, ids_name: str, total: int) -> None:
    """Raises SessionError unless a packed input has as many tokens as the ids, which have `total`."""
    if count != total:
        raise SessionError(f"'{name}' has {count} tokens, '{ids_name}' has {total}; pass one value for every token")


def check_lengths(seq_lens: Int32Array, tokens: int, name: str) -> None:
    """Raises SessionError unless every length is 0 or more and they add up to `tokens`."""
    negative = np.flatnonzero(seq_lens < 0)
    if negative.size:
        at = int(negative[0])
        raise SessionError(
            f"seq_lens[{at}] is {int(seq_lens[at])}, allowed: 0 or more; pass the number of tokens of each sequence"
        )
    total = int(seq_lens.sum(dtype=np.int64))
    if total != tokens:
        raise SessionError(
            f"seq_lens add up to {total}, but '{name}' has {tokens} tokens that belong to sequences; pass lengths "
            "that add up, and count tokens after the last sequence in filler_tokens"
        )


def check_sequence_lengths(seq_lens: Int32Array, metadata: Metadata) -> None:
    """Raises SessionError when a sequence is longer than the model's positions or the engine's profile."""
    longest = int(seq_lens.max(initial=0))
    if metadata.longest is None or longest <= metadata.longest:
        return
    at = int(seq_lens.argmax())
    if metadata.max_positions is not None and longest > metadata.max_positions:
        raise SessionError(
            f"sequence {at} has {longest} tokens, the model has {metadata.max_positions} positions; truncate it to "
            f"{metadata.max_positions} tokens or split it"
        )
    if metadata.engine is not None:
        profile = metadata.engine.profile
        limit = min(profile.max_seq_len, profile.max_tokens)
        if longest > limit:
            raise SessionError(
                f"sequence {at} has {longest} tokens, the engine's profile takes {limit}; truncate it, or build "
                f"the engine with --max-seq-len {longest}"
            )


def check_one_run(tokens: int, sequences: int, metadata: Metadata) -> None:
    """Raises SessionError when packed tokens are more than the engine takes at once, or there is nothing to run."""
    if not sequences:
        raise SessionError("seq_lens is empty, allowed: one or more sequences; a sequence may have 0 tokens")
    if metadata.engine is None:
        return
    profile = metadata.engine.profile
    for what, value, limit, option in (
        ("sequences", sequences, profile.max_batch, "--max-batch"),
        ("tokens", tokens, profile.max_tokens, "--max-tokens"),
    ):
        if value > limit:
            raise SessionError(
                f"{value} {what} in one run, the engine's profile takes {limit}; split the request, or build "
                f"the engine with {option} {value}"
            )


def columns_of(inputs: Any, metadata: Metadata) -> dict[str, Any]:
    """A request's inputs by the model's names; ids may come alone. Raises SessionError as check_names."""
    columns = metadata.own_names(inputs) if isinstance(inputs, Mapping) else {metadata.ids_input().name: inputs}
    check_names(columns, metadata)
    return columns


def check_names(columns: Mapping[str, Any], metadata: Metadata) -> None:
    """Raises SessionError for inputs that the model does not have, and for those that are missing."""
    tokens, rows = ([item.name for item in items] for items in (metadata.token_inputs(), metadata.sequence_inputs()))
    for name in columns:
        if name not in tokens and name not in rows:
            mask = metadata.interface == "padded" and metadata.input_of_role("mask")
            hint = ": masks and lengths follow from the lengths of the arrays" if mask else ""
            others = f", and of sequences {', '.join(rows)}" if rows else ""
            raise SessionError(
                f"unknown input '{name}', the model's token inputs are {', '.join(tokens)}{others}; leave it out{hint}"
            )
    for name in tokens:
        if name not in columns and name not in ZERO_WHEN_MISSING:
            raise SessionError(f"input '{name}' is missing; pass one array per sequence for {', '.join(tokens)}")
    missing = next((item for item in metadata.sequence_inputs() if item.name not in columns), None)
    if missing is not None and missing.original_name != PROMPT_LENGTH:
        what = "a number" if missing.width in (None, 1) else f"{missing.width} numbers"
        raise SessionError(
            f"input '{missing.name}' is missing; pass {what} for every sequence, or bind it to a number when the model "
            f"is rewritten: --fix {missing.original_name}=NUMBER"
        )


def check_values(item: InputInfo, packed: TokenArray, seq_lens: Int32Array) -> None:
    """Raises SessionError when a token value lies outside the model's table for this input, or may not occur in it."""
    if packed.size == 0:
        return
    if item.holds_embeddings:  # one that is not finite would spoil those of other sequences, which are multiplied by 0
        bad = np.flatnonzero(~np.isfinite(packed).reshape(-1))
        if bad.size:
            raise SessionError(
                f"'{item.name}' value {_where(packed, int(bad[0]), seq_lens)}: allowed: finite numbers; correct what "
                "makes the embeddings"
            )
        return
    limit = INT32_MAX + 1 if item.limit is None else item.limit
    # Seen as unsigned, negative values are the largest: one comparison finds both kinds.
    values = packed.reshape(-1).view(np.uint32)
    if int(np.maximum.reduce(values)) >= limit:
        at = int(np.flatnonzero(values >= np.uint32(limit))[0])
        raise SessionError(
            f"'{item.name}' value {_where(packed, at, seq_lens)}: allowed 0..{limit - 1}; {_ADVICE[item.width is None]}"
        )
    if not item.excluded:
        return
    bad = np.flatnonzero(np.isin(packed[: int(seq_lens.sum(dtype=np.int64))], item.excluded).reshape(-1))
    if bad.size:
        raise SessionError(
            f"'{item.name}' value {_where(packed, int(bad[0]), seq_lens)}: it stands for padding, and the model gives "
            "it no position; leave padding out of the sequences, or rewrite the model with --interface padded"
        )


def _where(packed: TokenArray, number: int, seq_lens: Int32Array) -> str:
    """A value and where it is: "7 at sequence 0, position 3"; `number` counts all values."""
    bounds, at = bounds_of(seq_lens), number // (packed.size // len(packed))
    sequence = int(np.searchsorted(bounds[1:], at, side="right"))
    where = (
        f"sequence {sequence}, position {at - bounds[sequence]}" if sequence < seq_lens.size else f"filler token {at}"
    )
    return f"{packed.reshape(-1)[number]} at {where}"
