# SPDX-License-Identifier: Apache-2.0
"""The load benchmark's own gRPC calls against grpcio's server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.load.http2 import FRAME_BYTES, GrpcConnection, Order, in_processes

grpc = pytest.importorskip("grpc")

METHOD = "/a.Service/Twice"


def answer(request: bytes, context: Any) -> bytes:
    if request == b"bad":
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such text")
    return request * 2


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", {"Twice": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_answers_of_calls_of_all_sizes(address: str) -> None:
    """Together they exceed the window that a connection begins with, and answers exceed a frame."""
    connection = GrpcConnection(address, METHOD)
    sizes = [0, 1, 2, 100, 5000, FRAME_BYTES - 5] * 8
    messages = [bytes([size % 251]) * size for size in sizes]
    assert [connection.call(message) for message in messages] == [message * 2 for message in messages]
    connection.close()


def test_a_refused_call_is_an_error_and_the_next_is_answered(address: str) -> None:
    connection = GrpcConnection(address, METHOD)
    with pytest.raises(ConnectionError, match="refused the call"):
        connection.call(b"bad")
    assert connection.call(b"good") == b"goodgood"
    connection.close()


def test_a_message_beyond_a_frame_is_refused(address: str) -> None:
    connection = GrpcConnection(address, METHOD)
    with pytest.raises(ValueError, match=r"16380 bytes, and at most 16379"):
        connection.call(bytes(FRAME_BYTES - 4))
    connection.close()


def test_callers_in_processes_ask_in_turn(address: str) -> None:
    requests = [bytes([number]) * 9 for number in range(5)]
    start = time.perf_counter()
    for head_start_s in (1.0, 5.0, 25.0):  # a busy machine starts processes late
        begin = time.perf_counter() + head_start_s
        orders = [Order(address, METHOD, requests, first, begin, begin + head_start_s / 5) for first in (0, 3)]
        found = in_processes(orders)
        if {at for at, _, _ in found} == set(range(5)):
            break
    assert {at for at, _, _ in found} == set(range(5))
    most_ms = 1e3 * (time.perf_counter() - start)
    assert all(reply == requests[at] * 2 and 0 < milliseconds < most_ms for at, milliseconds, reply in found)


def test_a_caller_that_fails_is_an_error() -> None:
    now = time.perf_counter()
    with pytest.raises(RuntimeError, match="a caller's process failed"):
        in_processes([Order("127.0.0.1:1", METHOD, [b"x"], 0, now, now + 1)])
