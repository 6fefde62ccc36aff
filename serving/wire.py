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

import numpy as np
from padfree.runtime import Array

HEADER = struct.Struct("<IBQ")  # bytes of the payload, kind, ticket
INFER, DRAIN, CANCEL = 0, 1, 2  # to the model; to a front-end; to the model: nobody waits for this ticket any more
PING, PONG = 3, 4  # to a front-end, every PING_S; and back
LEAVE = 5  # to a front-end: the server ends soon, and callers had better go elsewhere
ROWS, REFUSED, FAILED, BUSY = 10, 11, 12, 13  # answers
READY, LOG = 20, 21  # to the model's process: a front-end serves; a line for the log
_INFER = struct.Struct("<fIQI")  # seconds left, sequences, client, shares
_BUSY = struct.Struct("<f")  # seconds until it is worth another try, below 0 where that is not known; then words
_ROWS = struct.Struct("<ffB")  # seconds in the queue, seconds of the run, letters of the type; then type, axes


@dataclass(frozen=True)
class Frame:
    """One message; `ticket` says which request it belongs to."""

    kind: int
    ticket: int
    payload: memoryview


@dataclass(frozen=True)
class Rows:
    """What the model made of a group: an array [sequences, ...], or [tokens, ...], and how long that took."""

    values: Array
    queue_s: float
    run_s: float


def pack(kind: int, ticket: int, *parts: bytes | memoryview) -> bytes:
    """A frame."""
    return b"".join((HEADER.pack(sum(map(len, parts)), kind, ticket), *parts))


@dataclass(frozen=True)
class Infer:
    """What a front-end asks for.

    Attributes:
        seq_lens: lengths, int32 [B].
        columns: every token input, int32 [T], then inputs with a number per sequence, int32 [B].
        seconds: how long the caller waits for the answer.
        client: who asks, and shares the model with the other clients; 0: several.
        shares: how many clients those are.
    """

    seq_lens: Array
    columns: Sequence[Array]
    seconds: float
    client: int = 0
    shares: int = 1


def pack_infer(ticket: int, request: Infer) -> bytes:
    """The sequences of a request, or of some small ones."""
    seq_lens, columns = request.seq_lens, request.columns
    return pack(
        INFER,
        ticket,
        _INFER.pack(request.seconds, seq_lens.size, request.client, request.shares),
        seq_lens.tobytes(),
        *(column.tobytes() for column in columns),
    )


def unpack_infer(payload: memoryview, inputs: int, of_sequences: int = 0) -> Infer:
    """The request in a frame; the model has `inputs` token inputs and `of_sequences` with a number per sequence."""
    seconds, sequences, client, shares = _INFER.unpack_from(payload)
    numbers = np.frombuffer(payload, np.int32, offset=_INFER.size)
    end = numbers.size - sequences * of_sequences
    columns = (*numbers[sequences:end].reshape(inputs, -1), *numbers[end:].reshape(of_sequences, sequences))
    return Infer(numbers[:sequences], columns, seconds, client, shares)


def pack_busy(ticket: int, message: str, retry_after_s: float | None) -> bytes:
    """A refusal of what may be answered later."""
    return pack(BUSY, ticket, _BUSY.pack(-1.0 if retry_after_s is None else retry_after_s), message.encode())


def unpack_busy(payload: memoryview) -> tuple[str, float | None]:
    """Why, and in how many seconds it is worth another try; None where that is not known."""
    (seconds,) = _BUSY.unpack_from(payload)
    return bytes(payload[_BUSY.size :]).decode(), None if seconds < 0 else seconds


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
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        buffer = self._buffer
        buffer += data
        spans = []
        end = 0
        while len(buffer) - end >= HEADER.size:
            size, kind, ticket = HEADER.unpack_from(buffer, end)
            start = end + HEADER.size
            if len(buffer) < start + size:
                break
            end = start + size
            spans.append((kind, ticket, start, end))
        whole = memoryview(bytes(buffer[:end]))  # a copy, because arrays will be views of it
        del buffer[:end]
        for kind, ticket, start, stop in spans:
            yield Frame(kind, ticket, whole[start:stop])
