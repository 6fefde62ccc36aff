# SPDX-License-Identifier: Apache-2.0
"""Answers by token ids: the same sequence asked again costs no run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from ..rows import Array

Answer = dict[str, Array]

OVERHEAD_BYTES = 512
"""What an entry takes beside its ids and values: dictionaries, array headers."""


class ResponseCache:
    """Keeps the answers that were asked for last, in so many bytes; any number of threads may use it.

    Answers are copies that cannot be written to, shared by all who ask.

    Attributes:
        bytes_held: what the answers, their keys and the bookkeeping take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()
        self.bytes_held = 0

    def get(self, key: bytes) -> Answer | None:
        """The answer to these ids, or None."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                return None
            self._answers.move_to_end(key)
            return dict(answer)

    def put(self, key: bytes, answer: Mapping[str, Array]) -> Answer:
        """Keeps a copy of the answer, unless it is larger than the whole cache; returns the copy."""
        copy = {name: _freeze(value) for name, value in answer.items()}
        size = _size(key, copy)
        with self._lock:
            if size <= self._max_bytes and key not in self._answers:
                self._answers[key] = copy
                self.bytes_held += size
                while self.bytes_held > self._max_bytes:
                    self.bytes_held -= _size(*self._answers.popitem(last=False))
        return dict(copy)


def _freeze(value: Array) -> Array:
    # A copy: rows of a run are views of memory that all its answers share.
    copy = np.array(value)
    copy.flags.writeable = False
    return copy


def _size(key: bytes, answer: Mapping[str, Array]) -> int:
    return len(key) + sum(value.nbytes for value in answer.values()) + OVERHEAD_BYTES
