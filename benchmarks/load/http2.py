# SPDX-License-Identifier: Apache-2.0
"""One gRPC call after the other over a plain socket (RFC 9113, HTTP/2; RFC 7541, HPACK), with nothing but Python.

grpcio spends about as long on a call as a server does; this takes less, so that what is measured is the server.
Requests are serialised messages that fit into one frame.
"""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
"""Triton's method that runs a model."""
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
INITIAL_WINDOW_SIZE = 4
LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65535
FRAME_BYTES = 16384
HEAD_BYTES = 9


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(authority: str, path: str) -> bytes:
    """The header fields of a gRPC request, none of them indexed dynamically, so that they are the same every time."""
    fields = [b"\x83\x86"]  # :method POST, :scheme http
    fields += [name + bytes([len(value)]) + value for name, value in (
        (b"\x04", path.encode()),
        (b"\x01", authority.encode()),
        (b"\x0f\x10", b"application/grpc"),
        (b"\x00\x02te", b"trailers"),
    )]  # fmt: skip
    return b"".join(fields)


class GrpcConnection:
    """A connection on which one call at a time is under way.

    Args:
        address: host:port.
        path: the method, /package.Service/Method; at most 126 characters.
    """

    def __init__(self, address: str, path: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fields = headers(address, path)
        self._received = bytearray()
        self._window = FIRST_WINDOW
        self._stream = -1
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, LARGEST_WINDOW)
        grow = struct.pack(">I", LARGEST_WINDOW - FIRST_WINDOW)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, grow))

    def call(self, message: bytes) -> bytes:
        """Sends a serialised message, and returns the serialised answer.

        Raises:
            ValueError: the message does not fit into one frame.
            ConnectionError: the server refused the call, or ended the connection.
        """
        body = struct.pack(">BI", 0, len(message)) + message
        if len(body) > FRAME_BYTES:
            raise ValueError(f"a message has {len(message)} bytes, and at most {FRAME_BYTES - 5} fit into a frame")
        while self._window < len(body):
            self._note(*self._frame())
        self._window -= len(body)
        self._stream += 2
        stream = self._stream
        self._socket.sendall(frame(HEADERS, END_HEADERS, stream, self._fields) + frame(DATA, END_STREAM, stream, body))
        answer = bytearray()
        while True:
            kind, flags, of, payload = self._frame()
            if of != stream:
                self._note(kind, flags, of, payload)
            elif kind == RST_STREAM:
                raise ConnectionError(f"the server ended the call (code {int.from_bytes(payload, 'big')})")
            elif kind == DATA:
                answer += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
            if of == stream and kind in (DATA, HEADERS) and flags & END_STREAM:
                break
        if len(answer) < 5:
            raise ConnectionError("the server refused the call: it has no answer but a status")
        return bytes(answer[5:])

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """What frames beside those of a call ask for."""
        if kind == SETTINGS and not flags & ACK:
            self._socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            raise ConnectionError(f"the server ends the connection: {payload[8:].decode('utf-8', 'replace')}")

    def _frame(self) -> tuple[int, int, int, bytes]:
        self._fill(HEAD_BYTES)
        size = int.from_bytes(self._received[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self._received[3:HEAD_BYTES])
        self._fill(HEAD_BYTES + size)
        payload = bytes(self._received[HEAD_BYTES : HEAD_BYTES + size])
        del self._received[: HEAD_BYTES + size]
        return kind, flags, stream & LARGEST_WINDOW, payload

    def _fill(self, count: int) -> None:
        while len(self._received) < count:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._received += piece


Seen = tuple[int, float, bytes]
"""Which request, the milliseconds that its answer took, and the answer."""


@dataclass(frozen=True)
class Order:
    """What a caller does: it sends requests in turn until `end`; answers before `begin` are left out.

    Times are those of time.perf_counter, which all processes of a machine share.
    """

    address: str
    path: str
    requests: Sequence[bytes]
    first: int
    begin: float
    end: float


def carry_out(order: Order) -> list[Seen]:
    """Sends one request after the other."""
    connection = GrpcConnection(order.address, order.path)
    found: list[Seen] = []
    at = order.first
    while (start := time.perf_counter()) < order.end:
        at = (at + 1) % len(order.requests)
        answer = connection.call(order.requests[at])
        if start >= order.begin:
            found.append((at, 1e3 * (time.perf_counter() - start), answer))
    connection.close()
    return found


def in_processes(orders: Sequence[Order]) -> list[Seen]:
    """Carries out each order in a process of its own, which imports this module alone, and so starts at once.

    Raises:
        RuntimeError: a process failed; its error is on stderr.
    """
    command = [sys.executable, "-m", "benchmarks.load.http2"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in orders]
    for process, order in zip(processes, orders, strict=True):
        assert process.stdin is not None
        pickle.dump(asdict(order), process.stdin)
        process.stdin.close()
    found: list[Seen] = []
    for process in processes:
        assert process.stdout is not None
        result = process.stdout.read()
        if process.wait():
            raise RuntimeError("a caller's process failed")
        found += pickle.loads(result)
    return found


if __name__ == "__main__":
    pickle.dump(carry_out(Order(**pickle.load(sys.stdin.buffer))), sys.stdout.buffer)
