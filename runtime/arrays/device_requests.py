# SPDX-License-Identifier: Apache-2.0
"""Requests with arrays on the GPU: packed tokens that are read where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata
from padfree.contract.names import PREFIX
from padfree.contract.text_inputs import ZERO_WHEN_MISSING

from ..backend import Backend
from ..errors import SessionError
from ..feeds import cumulative
from ..request_checks import (
    check_lengths,
    check_one_run,
    check_sequence_lengths,
    check_token_count,
    check_values,
    columns_of,
)
from ..rows import Array, as_int32, as_tokens, no_tokens
from ..sequence_values import read_values
from ..shared_values import check_same_rows
from .device_arrays import CallerStream, DeviceFeeds, DeviceInput, on_device

Read = Callable[[Any, InputInfo], Array | DeviceInput]


def device_feeds(
    inputs: Any, seq_lens: Any, metadata: Metadata, backend: Backend, *, filler_tokens: int, stream: CallerStream | None
) -> DeviceFeeds:
    """The inputs of a packed engine, some of them on the GPU.

    Shapes and types are checked, and the values of what is on the host; values on the GPU are not.

    Args:
        inputs: input name -> [T, ...] of tokens, [B, ...] of sequences; or the ids [T] alone.
        seq_lens: [B].
        metadata: the engine's.
        backend: runs it.
        filler_tokens: tokens after the last sequence that belong to none.
        stream: the caller's, in whose order arrays on the GPU are there; None: the legacy default one.

    Raises:
        SessionError: an .onnx file's session, or arrays that do not fit the engine or each other.
    """
    read = _reader(backend, stream)
    columns = columns_of(inputs, metadata)
    lens_input = _lens_input(seq_lens, metadata)
    lens = read(seq_lens, lens_input)
    count = lens.shape[0]
    rows = _read_rows(columns, metadata, count, read)
    tokens = _read_tokens(columns, metadata, read)
    _check_rows(rows, metadata, count)
    total = tokens[metadata.ids_input().name].shape[0]
    check_one_run(total, count, metadata)
    if not total:  # engines take at least one token: a filler
        tokens = {item.name: no_tokens(item, 1) for item in metadata.token_inputs()}
    longest = None
    if not isinstance(lens, DeviceInput):
        _check_on_host(tokens, lens, total - filler_tokens, metadata)
        longest = int(lens.max(initial=0))
        lens = cumulative(lens) if lens_input.role == "cu_seqlens" else lens
    others = {item.name: np.zeros(max(1, total), np.int32) for item in metadata.inputs if item.role == "unread"}
    others |= {item.name: np.full(1, -1, np.int32) for item in metadata.inputs if item.role == PREFIX}
    return {**tokens, **others, lens_input.name: lens, **rows, **_longest_feed(metadata, longest)}


def _reader(backend: Backend, stream: CallerStream | None) -> Read:
    """What reads a value of an input of tokens, or the lengths, wherever it lies, and checks type and shape.

    Raises:
        SessionError: the session runs an .onnx file.
    """
    read_device_array = getattr(backend, "read_device_array", None)
    if read_device_array is None:
        raise SessionError(
            "arrays on the GPU need a plan, this session runs an .onnx file on the CPU; pass host arrays"
        )

    def read(value: Any, item: InputInfo) -> Array | DeviceInput:
        array: Array | DeviceInput
        if on_device(value):
            array = read_device_array(value, item.name, stream)
        else:
            array = as_tokens(value, item) if item.role == "tokens" else as_int32(value, item.name)
        if not array.shape or array.shape[1:] != item.trailing_shape:
            sizes = "one dimension" if item.width is None else f"[tokens, {item.width}]"
            raise SessionError(f"'{item.name}' has shape {list(array.shape)}, allowed: {sizes}; pass packed tokens")
        return array

    return read


def _lens_input(seq_lens: Any, metadata: Metadata) -> InputInfo:
    """The input that the lengths go into, or their sums; raises SessionError for lengths on the GPU to be summed."""
    item = next(item for item in metadata.inputs if item.role in ("seq_lens", "cu_seqlens"))
    if item.role == "cu_seqlens" and on_device(seq_lens):
        raise SessionError(
            f"seq_lens are on the GPU, and the engine takes '{item.name}'; pass them on the host, or build the "
            "engine with --interface packed"
        )
    return item


def _read_rows(columns: Mapping[str, Any], metadata: Metadata, count: int, read: Read) -> DeviceFeeds:
    """The inputs with a row for each of `count` sequences; raises SessionError for other types or shapes."""
    without_prompts = np.zeros(count, np.int32)  # columns_of refuses requests without any other
    values = ((item, columns.get(item.name, without_prompts)) for item in metadata.sequence_inputs())
    return {
        item.name: read(value, item) if on_device(value) else read_values(value, item, count) for item, value in values
    }


def _read_tokens(columns: Mapping[str, Any], metadata: Metadata, read: Read) -> DeviceFeeds:
    """The inputs with a value for every token; raises SessionError where one has more or fewer than the ids."""
    ids = metadata.ids_input()
    items = metadata.token_inputs()
    tokens = {item.name: read(columns[item.name], item) for item in items if item.name in columns}
    total = tokens[ids.name].shape[0]
    for item in items:
        if item.name in ZERO_WHEN_MISSING:
            tokens.setdefault(item.name, np.zeros(total, dtype=np.int32))
    for name, array in tokens.items():
        check_token_count(name, array.shape[0], ids.name, total)
    return tokens


def _check_rows(rows: DeviceFeeds, metadata: Metadata, count: int) -> None:
    """Raises SessionError for another number of rows than of sequences, or other rows where a run has one for all."""
    for name in metadata.shared_inputs:
        values = rows[name]
        if not isinstance(values, DeviceInput) and len(values):
            check_same_rows(name, values)
    for name, array in rows.items():
        if array.shape[0] != count:
            raise SessionError(
                f"'{name}' has {array.shape[0]} rows, there are {count} sequences; pass a row for every one"
            )


def _check_on_host(tokens: DeviceFeeds, lens: Array, total: int, metadata: Metadata) -> None:
    """Raises SessionError for lengths [B] that do not add up to `total`, or wrong values of tokens on the host."""
    check_lengths(lens, total, metadata.ids_input().name)
    check_sequence_lengths(lens, metadata)
    for item in metadata.token_inputs():
        values = tokens[item.name]
        if not isinstance(values, DeviceInput):
            check_values(item, values, lens)


def _longest_feed(metadata: Metadata, longest: int | None) -> dict[str, Any]:
    """`max_seqlen`, for graphs with padded nodes: the profile's limit where the lengths are on the GPU."""
    item = metadata.input_of_role("max_seqlen")
    if item is None:
        return {}
    if longest is None:
        assert metadata.engine is not None  # arrays on the GPU need a plan
        longest = metadata.engine.profile.max_seq_len
    return {item.name: np.zeros(max(1, longest), dtype=np.int32)}
