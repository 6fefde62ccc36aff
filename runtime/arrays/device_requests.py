# SPDX-License-Identifier: Apache-2.0
"""Requests with arrays on the GPU: packed tokens that are read where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.contract.names import PREFIX

from ..backend import Backend
from ..errors import SessionError
from ..feeds import cumulative
from ..request import (
    ZERO_WHEN_MISSING,
    check_lengths,
    check_one_run,
    check_sequence_lengths,
    check_values,
    columns_of,
)
from ..rows import as_int32, as_tokens, no_tokens
from ..sequence_values import read_values
from ..shared_values import check_same_rows
from .device_arrays import CallerStream, DeviceInput, on_device


def device_feeds(
    inputs: Any, seq_lens: Any, metadata: Metadata, backend: Backend, *, filler_tokens: int, stream: CallerStream | None
) -> dict[str, Any]:
    """The inputs of a packed engine, some of them on the GPU.

    Shapes and types are checked, and the values of what is on the host; values on the GPU are not.

    Raises:
        SessionError: an .onnx file's session, or arrays that do not fit the engine or each other.
    """
    reader = getattr(backend, "read_device_array", None)
    if reader is None:
        raise SessionError(
            "arrays on the GPU need a plan, this session runs an .onnx file on the CPU; pass host arrays"
        )
    ids = metadata.ids_input()
    columns = columns_of(inputs, metadata)
    items = {item.name: item for item in metadata.inputs}

    def read(value: Any, name: str) -> Any:
        width, trailing = items[name].width, items[name].trailing_shape
        if on_device(value):
            array = reader(value, name, stream)
        else:
            array = as_tokens(value, items[name]) if items[name].role == "tokens" else as_int32(value, name)
        if not array.shape or array.shape[1:] != trailing:
            sizes = "one dimension" if width is None else f"[tokens, {width}]"
            raise SessionError(f"'{name}' has shape {list(array.shape)}, allowed: {sizes}; pass packed tokens")
        return array

    lens_input = next(item for item in metadata.inputs if item.role in ("seq_lens", "cu_seqlens"))
    sums = lens_input.role == "cu_seqlens"
    if sums and on_device(seq_lens):
        raise SessionError(
            f"seq_lens are on the GPU, and the engine takes '{lens_input.name}'; pass them on the host, or build the "
            "engine with --interface packed"
        )
    lens = read(seq_lens, lens_input.name)
    rows = {item.name: item for item in metadata.sequence_inputs()}
    without_prompts = np.zeros(lens.shape[0], np.int32)  # check_names refuses requests without any other
    columns = {**dict.fromkeys(rows, without_prompts), **columns}
    of_sequences = {
        name: read(columns[name], name) if on_device(columns[name]) else read_values(columns[name], item, lens.shape[0])
        for name, item in rows.items()
    }
    feeds = {name: read(value, name) for name, value in columns.items() if name not in rows}
    total = feeds[ids.name].shape[0]
    for item in metadata.token_inputs():
        if item.name in ZERO_WHEN_MISSING:
            feeds.setdefault(item.name, np.zeros(total, dtype=np.int32))
    for name, array in feeds.items():
        if array.shape[0] != total:
            raise SessionError(
                f"'{name}' has {array.shape[0]} tokens, '{ids.name}' has {total}; pass one value for every token"
            )
    for name in metadata.shared_inputs:
        if not isinstance(of_sequences[name], DeviceInput) and len(of_sequences[name]):
            check_same_rows(name, of_sequences[name])
    for name, array in of_sequences.items():
        if array.shape[0] != lens.shape[0]:
            raise SessionError(
                f"'{name}' has {array.shape[0]} rows, there are {lens.shape[0]} sequences; pass a row for every one"
            )
    check_one_run(total, lens.shape[0], metadata)
    if not total:  # engines take at least one token: a filler
        feeds = {name: no_tokens(items[name], 1) for name in feeds}
    longest = None
    if not isinstance(lens, DeviceInput):
        check_lengths(lens, total - filler_tokens, ids.name)
        check_sequence_lengths(lens, metadata)
        longest = int(lens.max(initial=0))
        for item in metadata.token_inputs():
            if not isinstance(feeds[item.name], DeviceInput):
                check_values(item, feeds[item.name], lens)
    feeds |= {item.name: np.zeros(max(1, total), np.int32) for item in metadata.inputs if item.role == "unread"}
    feeds |= {item.name: np.full(1, -1, np.int32) for item in metadata.inputs if item.role == PREFIX}
    feeds[lens_input.name] = cumulative(lens) if sums else lens
    return {**feeds, **of_sequences, **_longest_feed(metadata, longest)}


def _longest_feed(metadata: Metadata, longest: int | None) -> dict[str, Any]:
    """`max_seqlen`, for graphs with padded nodes: the profile's limit where the lengths are on the GPU."""
    item = metadata.input_of_role("max_seqlen")
    if item is None:
        return {}
    if longest is None:
        assert metadata.engine is not None  # arrays on the GPU need a plan
        longest = metadata.engine.profile.max_seq_len
    return {item.name: np.zeros(max(1, longest), dtype=np.int32)}
