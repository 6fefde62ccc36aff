# SPDX-License-Identifier: Apache-2.0
"""What front-end processes and the process with the model say to each other, over a local socket.

A frame is a header and a payload. Tokens and rows travel as the bytes of their arrays: nothing is parsed, and no number
is converted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HEADER = struct.Struct("<IBQ")  # bytes of the payload, kind, ticket
INFER, DRAIN = 0, 1  # to the model; to a front-end
ROWS, REFUSED, FAILED, BUSY = 10, 11, 12, 13  # answers
READY, LOG = 20, 21  # to the model's process: a front-end serves; a line for the log
_INFER = struct.Struct("<fI")  # seconds left, sequences
_ROWS = struct.Struct("<ffB")  # seconds in the queue, seconds of the run, letters of the type; then type, axes


@dataclass(frozen=True)
class Frame:
    """One message; `ticket` tells whose answer it is."""

    kind: int
    ticket: int
    payload: memoryview


@dataclass(frozen=True)
class Rows:
    """What the model made of a group: an array [sequences, ...], and how long that took."""

    values: Array
    queue_s: float
    run_s: float


def pack(kind: int, ticket: int, *parts: bytes | memoryview) -> bytes:
    """A frame."""
    return b"".join((HEADER.pack(sum(map(len, parts)), kind, ticket), *parts))


def pack_infer(ticket: int, seq_lens: Array, columns: Sequence[Array], seconds: float) -> bytes:
    """A group of sequences: lengths int32 [B], every token input, int32 [T], then inputs of sequences, int32 [B]."""
    return pack(
        INFER,
        ticket,
        _INFER.pack(seconds, seq_lens.size),
        seq_lens.tobytes(),
        *(column.tobytes() for column in columns),
    )


def unpack_infer(
    payload: memoryview, inputs: Sequence[str], of_sequences: Sequence[str] = ()
) -> tuple[float, Array, dict[str, Array]]:
    """Seconds left, lengths [B], and input name -> [T], or [B] for those of sequences."""
    seconds, sequences = _INFER.unpack_from(payload)
    numbers = np.frombuffer(payload, np.int32, offset=_INFER.size)
    end = numbers.size - sequences * len(of_sequences)
    columns = dict(zip(inputs, numbers[sequences:end].reshape(len(inputs), -1), strict=True))
    columns |= zip(of_sequences, numbers[end:].reshape(len(of_sequences), sequences), strict=True)
    return seconds, numbers[:sequences], columns


def pack_rows(ticket: int, values: Array, queue_s: float, run_s: float) -> bytes:
    """The answer to a group."""
    kind = json.dumps([values.dtype.str, *values.shape]).encode()
    return pack(ROWS, ticket, _ROWS.pack(queue_s, run_s, len(kind)), kind, np.ascontiguousarray(values).tobytes())


def unpack_rows(payload: memoryview) -> Rows:
    """The answer to a group; the array is of the payload's memory."""
    queue_s, run_s, letters = _ROWS.unpack_from(payload)
    start = _ROWS.size + letters
    dtype, *shape = json.loads(bytes(payload[_ROWS.size : start]))
    return Rows(np.frombuffer(payload[start:], np.dtype(dtype)).reshape(shape), queue_s, run_s)


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        held = self._held
        held += data
        places = []
        end = 0
        while len(held) - end >= HEADER.size:
            size, kind, ticket = HEADER.unpack_from(held, end)
            start = end + HEADER.size
            if len(held) < start + size:
                break
            end = start + size
            places.append((kind, ticket, start, end))
        whole = memoryview(bytes(held[:end]))  # of its own, for arrays will be parts of it
        del held[:end]
        for kind, ticket, start, stop in places:
            yield Frame(kind, ticket, whole[start:stop])
