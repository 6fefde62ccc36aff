# SPDX-License-Identifier: Apache-2.0
"""Between Triton's requests and ragged batches, in NumPy alone.

A request carries n sequences. Its token inputs are [n, L], one row per sequence; where the sequences differ in length
the rows are right-padded and `seq_lens` [n, 1] says how many tokens of each row count. Outputs are [n, L, ...] where
they have a row per token (zeros after a sequence's end) and [n, ...] where they have a row per sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from padfree.contract.metadata import Metadata, OutputInfo
from padfree.contract.text_inputs import ZERO_WHEN_MISSING

from ..errors import SessionError
from ..request import RaggedBatch
from ..request_checks import check_names, check_sequence_lengths, check_values
from ..rows import Array, as_int32
from ..sequence_values import read_values

SEQ_LENS = "seq_lens"


@dataclass(frozen=True)
class Item:
    """The sequences of one request.

    Attributes:
        tokens: token input name -> int32 [sum of seq_lens].
        of_sequences: name of an input with a row for every sequence -> [n, N].
        seq_lens: tokens of each sequence, at least 1.
        width: L, the row length of the request's inputs.
    """

    tokens: Mapping[str, Array]
    seq_lens: list[int]
    width: int
    of_sequences: Mapping[str, Array] = field(default_factory=dict)


def read_item(tensors: Mapping[str, Array], metadata: Metadata) -> Item:
    """Checks types and shapes of one request; values and lengths are checked for all requests together, by `join`.

    Args:
        tensors: input name -> array as the server gives it.
        metadata: the model's inputs.

    Raises:
        SessionError: unknown or missing inputs, no integers, other shapes, no tokens.
    """
    columns = {name: tensor for name, tensor in tensors.items() if name != SEQ_LENS}
    check_names(columns, metadata)
    ids_name = metadata.ids_input().name
    shape = columns[ids_name].shape
    if len(shape) != 2 or not shape[0] or not shape[1]:
        raise SessionError(
            f"'{ids_name}' has shape {list(shape)}, allowed: [sequences, tokens], both 1 or more; send one row per "
            "sequence, special tokens included"
        )
    without_prompts = np.zeros((shape[0], 1), np.int32)  # check_names refuses requests without any other
    of_sequences = {item.name: columns.pop(item.name, without_prompts) for item in metadata.sequence_inputs()}
    for name, column in columns.items():
        if column.shape != shape:
            raise SessionError(
                f"'{name}' has shape {list(column.shape)}, '{ids_name}' has {list(shape)}; send one value for every "
                "token"
            )
    count, width = shape
    for item in metadata.sequence_inputs():
        read_values(of_sequences[item.name], item, count)
    seq_lens = [width] * count
    is_token: Any = None
    if SEQ_LENS in tensors:
        lens = _read_seq_lens(tensors[SEQ_LENS], count, width)
        seq_lens = lens.tolist()
        if min(seq_lens) < width:
            is_token = np.arange(width) < lens[:, None]
    tokens = {
        name: as_int32(column.reshape(-1) if is_token is None else column[is_token], name)
        for name, column in columns.items()
    }
    return Item(tokens, seq_lens, width, of_sequences)


def join(items: Sequence[Item], metadata: Metadata) -> RaggedBatch:
    """All sequences of the requests, in order, as one checked batch.

    Raises:
        SessionError: a sequence is too long for the model, or holds a value outside its tables.
    """
    seq_lens = np.array([length for item in items for length in item.seq_lens], dtype=np.int32)
    check_sequence_lengths(seq_lens, metadata)
    tokens = {}
    for info in metadata.token_inputs():
        rows = [_column(item, info.name) for item in items]
        tokens[info.name] = rows[0] if len(rows) == 1 else np.concatenate(rows)
        check_values(info, tokens[info.name], seq_lens)
    of_sequences = {
        info.name: read_values(np.concatenate([item.of_sequences[info.name] for item in items]), info, seq_lens.size)
        for info in metadata.sequence_inputs()
    }
    return RaggedBatch(tokens, seq_lens, of_sequences)


def stack(rows: Sequence[Array], item: Item, output: OutputInfo) -> Array:
    """One request's output from its sequences' parts, as Session gives them: with zeros after every one's end."""
    is_token_axis = [size == "S" or size == "T" for size in output.sizes if size != "B"]
    if len(rows) == 1 and (not any(is_token_axis) or item.seq_lens[0] == item.width):
        return rows[0][None]
    if not any(is_token_axis) or min(item.seq_lens) == item.width:
        return np.stack(rows)
    own = rows[0].shape
    sizes = [item.width if i < len(is_token_axis) and is_token_axis[i] else size for i, size in enumerate(own)]
    padded = np.zeros((len(rows), *sizes), dtype=rows[0].dtype)
    for at, row in enumerate(rows):
        padded[at][tuple(slice(size) for size in row.shape)] = row
    return padded


def _read_seq_lens(tensor: Array, count: int, width: int) -> Array:
    if tensor.shape != (count, 1):
        raise SessionError(
            f"'{SEQ_LENS}' has shape {list(tensor.shape)}, allowed: {[count, 1]}; send one length per sequence"
        )
    lens = as_int32(tensor[:, 0], SEQ_LENS)
    if lens.min() < 1 or lens.max() > width:
        bad = int(lens.min()) if lens.min() < 1 else int(lens.max())
        raise SessionError(
            f"'{SEQ_LENS}' holds {bad}, allowed: 1..{width}, the width of the rows; send the tokens of each sequence"
        )
    return lens


def _column(item: Item, name: str) -> Array:
    if name in item.tokens:
        return item.tokens[name]
    assert name in ZERO_WHEN_MISSING  # read_item refuses requests without any other
    return np.zeros(sum(item.seq_lens), dtype=np.int32)
