# SPDX-License-Identifier: Apache-2.0
"""A hundred thousand requests to the native backend in the real server, with hostile ones between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.http2 import MODEL_INFER, Order, Seen, in_processes
from tests.support.native_triton import MAX_POSITIONS, write_model
from tests.support.triton_server import TritonServer

from .bad_requests import assert_bad_requests_fail_alone
from .native import OUTPUTS, Sequences, assert_right, random_requests, tensors

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

REQUESTS = 100_000
CALLERS = 8
ROUND_S = 5.0
MOST_GROWTH = 16 << 20
"""How many bytes the server may grow after the first round: its pools and its allocator's pages."""


def request_of(sequences: Sequences) -> bytes:
    """A request for all outputs, serialised."""
    from tritonclient.grpc import service_pb2

    request, arrays = service_pb2.ModelInferRequest(model_name="loaded"), tensors(sequences)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype="INT32", shape=array.shape)
    request.raw_input_contents.extend(array.tobytes() for array in arrays.values())
    return bytes(request.SerializeToString())


def assert_all_right(found: list[Seen], requests: list[Sequences]) -> None:
    """Checks the first answer to each request in full, and that all others hold the same bytes."""
    import tritonclient.grpc as triton
    from tritonclient.grpc import service_pb2

    contents: dict[int, list[bytes]] = {}
    for at, _, answer in found:
        response = service_pb2.ModelInferResponse.FromString(answer)
        if at not in contents:
            result = triton.InferResult(response)
            assert_right({name: result.as_numpy(name) for name in OUTPUTS}, requests[at])
            contents[at] = list(response.raw_output_contents)
        assert list(response.raw_output_contents) == contents[at]


def memory_of(server: TritonServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def rounds(server: TritonServer, requests: list[Sequences]) -> Iterator[list[Seen]]:
    """What callers in processes of their own see, a few seconds at a time."""
    messages = [request_of(each) for each in requests]
    while True:
        begin = time.perf_counter()
        numbers = range(0, len(messages), len(messages) // CALLERS)
        yield in_processes(
            [Order(server.url("grpc"), MODEL_INFER, messages, first, begin, begin + ROUND_S) for first in numbers]
        )


def test_a_hundred_thousand_requests(native_server: TritonServer, native_repository: Path) -> None:
    config = "max_batch_size: 16 instance_group { kind: KIND_CPU count: 2 } dynamic_batching { }"
    write_model(native_repository, "loaded", plan="delay_us 50", config=config)
    native_server.post("v2/repository/models/loaded/load")
    requests, stop = random_requests(17, 40 * CALLERS), threading.Event()

    def be_hostile() -> int:
        count = 0
        while not stop.is_set():
            bad: Any = assert_bad_requests_fail_alone(
                native_server,
                "grpc",
                "loaded",
                MAX_POSITIONS,
                lambda count: [tensors(each) for each in requests[:count]],
                OUTPUTS,
            )
            count += len(bad)
        return count

    seen, before = 0, 0
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(be_hostile)
        try:
            for found in rounds(native_server, requests):
                assert_all_right(found, requests)
                before = before or memory_of(native_server)
                seen += len(found)
                if seen >= REQUESTS or hostile.done():
                    break
        finally:
            stop.set()
        assert hostile.result() > 100
    assert seen >= REQUESTS
    assert memory_of(native_server) < before + MOST_GROWTH
    native_server.post("v2/repository/models/loaded/unload")
