# SPDX-License-Identifier: Apache-2.0
"""Makes checked ragged batches of what callers pass, on the host, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import Metadata
from padfree.contract.text_inputs import ZERO_WHEN_MISSING

from .errors import SessionError
from .request_checks import (
    check_lengths,
    check_sequence_lengths,
    check_token_count,
    check_values,
    columns_of,
)
from .rows import (
    INT32_MAX,
    Int32Array,
    TokenArray,
    as_int32,
    as_tokens,
    bounds_of,
    check_same_lengths,
    no_tokens,
    pack_lists,
    ranges,
    read_column,
)
from .sequence_values import read_sequence_values

OutputRows = dict[str, list[Any]]
"""By name of the output, an array for every sequence."""
FEW = 64
"""For so few numbers Python is faster than NumPy."""


class RaggedBatch(NamedTuple):
    """A checked ragged batch in the caller's order.

    tokens: token input name -> int32 [T], all sequences one after the other; [T, N] where a token has N numbers, which
    are float32 where they are embeddings.
    seq_lens: int32 [B].
    of_sequences: name of an input with a row for every sequence -> [B] or [B, N], int32 or float32.
    prefix: int32 [B], the number of the sequence that each continues, or -1; None: none does.
    """

    tokens: Mapping[str, TokenArray]
    seq_lens: Int32Array
    of_sequences: Mapping[str, TokenArray] = MappingProxyType({})
    prefix: Int32Array | None = None

    def parts(self, runs: Sequence[slice]) -> list[RaggedBatch]:
        """The sequences of each slice."""
        if len(runs) == 1 and (runs[0].start, runs[0].stop) == (0, self.seq_lens.size):
            return [self]
        bounds = bounds_of(self.seq_lens).tolist()
        return [
            RaggedBatch(
                {name: row[bounds[run.start] : bounds[run.stop]] for name, row in self.tokens.items()},
                self.seq_lens[run],
                {name: rows[run] for name, rows in self.of_sequences.items()},
            )
            for run in runs
        ]

    def rows(self) -> dict[str, list[TokenArray]]:
        """Input name -> one array per sequence, as `Session.run` takes them."""
        bounds = bounds_of(self.seq_lens).tolist()
        tokens = {name: [row[start:end] for start, end in pairwise(bounds)] for name, row in self.tokens.items()}
        return tokens | {name: list(rows) for name, rows in self.of_sequences.items()}

    @staticmethod
    def join(parts: Sequence[RaggedBatch]) -> RaggedBatch:
        """The sequences of several batches of one model, one or more, as one batch."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        tokens = {name: np.concatenate([part.tokens[name] for part in parts]) for name in first.tokens}
        rows = {name: np.concatenate([part.of_sequences[name] for part in parts]) for name in first.of_sequences}
        return RaggedBatch(tokens, np.concatenate([part.seq_lens for part in parts]), rows)

    def take(self, sequences: Sequence[int] | npt.NDArray[np.int64]) -> RaggedBatch:
        """Some of the sequences, in the order given."""
        if isinstance(sequences, range) and sequences.step == 1:
            return self.parts([slice(sequences.start, sequences.stop)])[0]
        if len(sequences) == self.seq_lens.size and np.array_equal(sequences, np.arange(self.seq_lens.size)):
            return self
        seq_lens = self.seq_lens[sequences]
        at = ranges(bounds_of(self.seq_lens)[sequences], seq_lens)
        rows = {name: values[sequences] for name, values in self.of_sequences.items()}
        return RaggedBatch({name: row[at] for name, row in self.tokens.items()}, seq_lens, rows)


def in_order(parts: Iterable[tuple[Sequence[int], Mapping[str, Sequence[Any]]]], count: int) -> OutputRows:
    """All sequences' rows in the order of their numbers, from parts: the numbers of some, and their results."""
    rows_in_order: OutputRows = {}
    for numbers, results in parts:
        for name, rows in results.items():
            row_of = rows_in_order.setdefault(name, [None] * count)
            for number, row in zip(numbers, rows, strict=True):
                row_of[number] = row
    return rows_in_order


def read_request(request: Any, metadata: Metadata) -> RaggedBatch:
    """Checks a request of one array per sequence and packs it.

    Args:
        request: a mapping of token input name -> list of id arrays, or a bare list of id arrays; inputs with a row for
            every sequence have a number, or an array of N, for each.
        metadata: the model's inputs and limits.

    Raises:
        SessionError: unknown or missing inputs, wrong types or ranks, lengths that differ between inputs, values
            outside the model's tables.
    """
    if type(request) is list:
        ragged = _read_lists(request, metadata)
        if ragged is not None:
            return ragged
    ids = metadata.ids_input()
    columns = columns_of(request, metadata)
    items = metadata.token_inputs()
    items_by_name = {item.name: item for item in items}
    columns_read = {
        name: read_column(items_by_name[name], column) for name, column in columns.items() if name in items_by_name
    }
    lengths = columns_read[ids.name].lengths
    tokens: dict[str, TokenArray] = {}
    for item in items:
        column = columns_read.get(item.name)
        if column is None:
            tokens[item.name] = no_tokens(item, sum(lengths))
            continue
        check_same_lengths(item.name, column, ids.name, lengths)
        tokens[item.name] = column.pack(item)
    seq_lens = np.array(lengths, dtype=np.int32)
    if metadata.longest is not None and max(lengths, default=0) > metadata.longest:
        check_sequence_lengths(seq_lens, metadata)
    for item in items:
        if item.name in columns_read or item.excluded:  # zeros are in every table
            check_values(item, tokens[item.name], seq_lens)
    return RaggedBatch(tokens, seq_lens, read_sequence_values(columns, metadata, len(lengths)))


def _read_lists(rows: list[Any], metadata: Metadata) -> RaggedBatch | None:
    """A request that is lists of ids alone, with nothing wrong: the usual kind, read fast.

    None for everything else: then `read_request` looks at every part by itself and names what is wrong.
    """
    ids = metadata.ids_input()
    items = metadata.token_inputs()
    if metadata.sequence_inputs():
        return None
    for item in items:
        if item.excluded or item.holds_embeddings or (item is not ids and item.name not in ZERO_WHEN_MISSING):
            return None
    column = pack_lists(rows)
    packed = None if column is None else column.packed
    if column is None or packed is None:
        return None
    lengths = column.lengths
    if metadata.longest is not None and max(lengths, default=0) > metadata.longest:
        return None
    if not _in_table(packed, INT32_MAX + 1 if ids.limit is None else ids.limit):
        return None
    tokens = {
        item.name: packed if item is ids else np.zeros((packed.size, *item.trailing_shape), np.int32) for item in items
    }
    return RaggedBatch(tokens, np.array(lengths, dtype=np.int32))


def _in_table(packed: Int32Array, limit: int) -> bool:
    """Whether all values are 0..limit-1."""
    if packed.size <= FEW:
        values = packed.tolist()
        return not values or (min(values) >= 0 and max(values) < limit)
    return int(np.maximum.reduce(packed.view(np.uint32))) < limit  # negative ones are the largest


def read_packed(inputs: Any, seq_lens: Any, metadata: Metadata, *, filler_tokens: int = 0) -> RaggedBatch:
    """Checks a request that is packed already: token arrays [T] and seq_lens [B].

    Args:
        inputs: token input name -> integers [T] ([T, N] where a token has N numbers, floats of embeddings), or the ids
            [T] alone; name of an input with a row for every sequence -> [B] or [B, N].
        seq_lens: integers [B].
        metadata: the model's inputs and limits.
        filler_tokens: how many tokens after the last sequence belong to none (they round T up to a fixed size).

    Raises:
        SessionError: as read_request; also lengths that are negative or do not add up to T.
    """
    ids = metadata.ids_input()
    columns = columns_of(inputs, metadata)
    lens = as_int32(seq_lens, "seq_lens")
    if filler_tokens < 0:
        raise SessionError(f"filler_tokens is {filler_tokens}, allowed: 0 or more; pass T minus the lengths' sum")
    total = len(as_tokens(columns[ids.name], ids))
    check_lengths(lens, total - filler_tokens, ids.name)
    tokens: dict[str, TokenArray] = {}
    for item in metadata.token_inputs():
        packed = as_tokens(columns[item.name], item) if item.name in columns else no_tokens(item, total)
        check_token_count(item.name, len(packed), ids.name, total)
        tokens[item.name] = packed
    check_sequence_lengths(lens, metadata)
    for item in metadata.token_inputs():
        check_values(item, tokens[item.name], lens)
    return RaggedBatch(tokens, lens, read_sequence_values(columns, metadata, lens.size))
