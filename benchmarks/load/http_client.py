# SPDX-License-Identifier: Apache-2.0
"""HTTP connections of one worker.

Bodies are tritonclient's, made once per request of the pool. They are sent over plain sockets in one thread: the less a
request costs here, the more of the machine is left to the server.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import triton_to_np_dtype

from .client import Answer, Array, Outcome, Target, infer_inputs, judge_request
from .traffic import Request

END_OF_HEAD = b"\r\n\r\n"
PIECE_BYTES = 1 << 18


@dataclass
class _Connection:
    socket: socket.socket
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)
    ticket: int = -1
    request: int = -1
    total: int = 0  # bytes of the reply, 0 until its head has come


class HttpClient:
    """Keeps one request under way on each connection.

    Args:
        target: the model and output that requests ask for.
        pool: the requests that `send` refers to.
        expected: the answers, or None to accept every answer.
    """

    def __init__(self, target: Target, pool: Sequence[Request], expected: Sequence[Array] | None) -> None:
        self._messages = [self._message(target, request) for request in pool]
        self._expected = expected
        self._dtype = self._output_type(target)
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        host, port = target.address.rsplit(":", 1)
        for _ in range(target.connections):
            opened = socket.create_connection((host, int(port)))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setblocking(False)
            connection = _Connection(opened)
            self._connections[opened.fileno()] = connection
            self._idle.append(connection)
            self._poll.register(opened, select.EPOLLIN)

    def can_send(self) -> bool:
        """Whether a connection is free."""
        return bool(self._idle)

    def send(self, ticket: int, request: int) -> None:
        """Sends a request of the pool."""
        connection = self._idle.pop()
        connection.ticket, connection.request = ticket, request
        connection.unsent = memoryview(self._messages[request])
        self._send_rest(connection)

    def _send_rest(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        connection.unsent = connection.unsent[sent:]
        if connection.unsent:
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def wait(self, seconds: float) -> Sequence[Answer]:
        """The answers that have come; it waits up to `seconds` for the first."""
        # select() has a resolution of microseconds, epoll one of milliseconds, and select() can wait for an epoll.
        if not select.select([self._poll], [], [], max(seconds, 0.0))[0]:
            return ()
        answered = []
        for number, events in self._poll.poll(0):
            connection = self._connections[number]
            if events & select.EPOLLOUT:
                self._poll.modify(connection.socket, select.EPOLLIN)
                self._send_rest(connection)
            if events & ~select.EPOLLOUT and self._receive(connection):
                answered.append(Answer(connection.ticket, time.perf_counter(), self._read(connection)))
                connection.received.clear()
                connection.total = 0
                self._idle.append(connection)
        return answered

    def _receive(self, connection: _Connection) -> bool:
        """Reads what has come; returns whether the reply is complete."""
        piece = connection.socket.recv(PIECE_BYTES)
        if not piece:
            raise ConnectionError("the server has closed a connection; look into its log")
        received = connection.received
        received += piece
        if not connection.total:
            end = received.find(END_OF_HEAD)
            if end >= 0:
                connection.total = end + len(END_OF_HEAD) + header(received, b"content-length")
        return 0 < connection.total <= len(received)

    def _read(self, connection: _Connection) -> Outcome:
        received = connection.received
        if not received.startswith(b"HTTP/1.1 200"):
            return Outcome.REFUSED
        if self._expected is None:
            return Outcome.RIGHT
        texts = len(self._expected[connection.request])
        return judge_request(self._values(received).reshape(texts, -1), self._expected, connection.request)

    def _message(self, target: Target, request: Request) -> bytes:
        return message(target, request)

    def _output_type(self, target: Target) -> np.dtype[np.generic]:
        return output_type(target)

    def _values(self, received: bytearray) -> Array:
        """The numbers of a complete reply, float32."""
        start = received.find(END_OF_HEAD) + len(END_OF_HEAD) + header(received, b"inference-header-content-length")
        return np.frombuffer(bytes(received[start:]), dtype=self._dtype).astype(np.float32)

    def close(self) -> None:
        """Ends the connections."""
        for connection in self._connections.values():
            connection.socket.close()
        self._poll.close()


def message(target: Target, request: Request) -> bytes:
    """The bytes of a request, including its head."""
    outputs = [triton.InferRequestedOutput(target.output, binary_data=True)]
    body, json_size = triton.InferenceServerClient.generate_request_body(
        infer_inputs(request, triton.InferInput), outputs=outputs
    )
    lines = [f"POST /v2/models/{target.model}/infer HTTP/1.1", f"Host: {target.address}"]
    lines += [f"Content-Length: {len(body)}", "Content-Type: application/octet-stream"]
    if json_size is not None:
        lines.append(f"Inference-Header-Content-Length: {json_size}")
    return "\r\n".join(lines).encode() + END_OF_HEAD + bytes(body)


def header(received: bytearray, name: bytes) -> int:
    """A number in the head of a reply, or 0 if it is not there."""
    head = bytes(received[: received.find(END_OF_HEAD)]).lower()
    _, result, rest = head.partition(b"\r\n" + name + b":")
    return int(rest.split(b"\r\n", 1)[0]) if result else 0


def output_type(target: Target) -> np.dtype[np.generic]:
    """The type of the output, as the server describes the model."""
    with triton.InferenceServerClient(target.address) as client:
        described = client.get_model_metadata(target.model)["outputs"]
    datatype = next(item["datatype"] for item in described if item["name"] == target.output)
    dtype: np.dtype[np.generic] = np.dtype(triton_to_np_dtype(datatype))
    return dtype
