# SPDX-License-Identifier: Apache-2.0
"""Calls with all arrays on the GPU: once one has passed all checks, those of the same description need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from padfree.contract.metadata import Metadata

from . import dlpack
from .device_arrays import LEGACY_STREAM, DeviceInput
from .dlpack_exchange import exchange_of

MOST_KEPT = 4096
"""Descriptions: token counts differ from call to call."""

_INT32 = np.dtype(np.int32)


class Call(NamedTuple):
    """The inputs of one call, and everything that checks of them look at: names, GPUs, types, shapes, steps."""

    key: tuple[Any, ...]
    feeds: dict[str, DeviceInput]


class CheckedCalls:
    """The calls of one packed engine. Values on the GPU are never checked, so a description is all that checks need.

    Any number of threads may use it.
    """

    def __init__(self, metadata: Metadata) -> None:
        names = {item.role: item.name for item in metadata.inputs}
        # Other roles are made from lengths on the host.
        embeddings = any(item.holds_embeddings for item in metadata.inputs)  # calls are described for int32 alone
        self._is_for = set(names) == {"tokens", "seq_lens"} and not embeddings
        self._metadata = metadata
        self._ids = metadata.ids_input().name
        self._lens = names.get("seq_lens", "")
        self._count = len(metadata.inputs)
        self._checked_keys: dict[tuple[Any, ...], None] = {}

    def read(self, inputs: Any, seq_lens: Any) -> Call | None:
        """The call, if all inputs are given as arrays on the GPU that their library describes in C; otherwise None."""
        if not self._is_for:
            return None
        is_mapping = type(inputs) is dict or isinstance(inputs, Mapping)  # the latter takes 0.3 us
        columns = self._metadata.own_names(inputs) if is_mapping else {self._ids: inputs}
        if len(columns) + 1 != self._count or self._lens in columns:
            return None
        columns[self._lens] = seq_lens
        feeds: dict[str, DeviceInput] = {}
        key: list[Any] = []
        producers: dict[tuple[Any, int], int] = {}
        for name, value in columns.items():
            exchange = exchange_of(value)
            description = None if exchange is None else exchange.describe_bare(value)
            if exchange is None or description is None:
                return None
            address, kind, index, element, shape, steps = description
            if kind != dlpack.CUDA:
                return None
            made_by = exchange, index
            if made_by not in producers:
                producers[made_by] = exchange.current_stream(kind, index) or LEGACY_STREAM
            feeds[name] = DeviceInput(address, shape, _INT32, producers[made_by], value)
            key += (name, index, element, shape, steps)
        return Call(tuple(key), feeds)

    def is_known(self, call: Call) -> bool:
        """Whether a call of this description has passed all checks."""
        return call.key in self._checked_keys

    def remember(self, call: Call) -> None:
        """Records that it has; calls without tokens or sequences take another way and are not kept."""
        if all(feed.nbytes for feed in call.feeds.values()):
            if len(self._checked_keys) >= MOST_KEPT:
                self._checked_keys.clear()
            self._checked_keys[call.key] = None
