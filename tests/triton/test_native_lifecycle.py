# SPDX-License-Identifier: Apache-2.0
"""The native backend while models come and go, requests are cancelled, and the server ends."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native_triton import write_model
from tests.support.triton_server import TritonServer

from .calls import Answer, call_all
from .native import OUTPUTS, assert_right, random_requests, tensors
from .processes import wait_until

pytestmark = pytest.mark.needs_triton

RUN_S, ATTEMPTS = 0.4, 3
NOT_SERVED = re.compile("not ready|unavailable|not found|no available versions|unloading", re.IGNORECASE)


def series(server: TritonServer, name: str, model: str) -> float:
    """The sum of a counter over a model's instances."""
    lines = server.get("metrics", "metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{") and f'model="{model}"' in line)


def load(server: TritonServer, repository: Path, name: str, **changes: Any) -> None:
    write_model(repository, name, **changes)
    server.post(f"v2/repository/models/{name}/load")


def threads_of(server: TritonServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def test_counters_and_statistics(native_server: TritonServer, native_repository: Path) -> None:
    load(native_server, native_repository, "counted", config="instance_group { kind: KIND_CPU count: 2 }")
    requests = random_requests(8, 100)
    bad = {"input_ids": np.full((1, 3), 930, np.int32)}
    call_all(native_server, "grpc", "counted", [*(tensors(each) for each in requests), bad, bad], OUTPUTS)
    lengths = [len(ids) for sequences in requests for ids, _ in sequences]
    assert series(native_server, "padfree_tokens_total", "counted") == sum(lengths)
    assert series(native_server, "padfree_sequences_total", "counted") == len(lengths)
    assert series(native_server, "padfree_padded_tokens_total", "counted") >= sum(lengths)
    assert series(native_server, "padfree_refused_requests_total", "counted") == 2
    assert series(native_server, "padfree_failed_requests_total", "counted") == 0
    runs = series(native_server, "padfree_runs_total", "counted")
    (found,) = json.loads(native_server.get("v2/models/counted/stats"))["model_stats"]
    assert found["execution_count"] == runs
    assert found["inference_count"] == len(lengths)
    assert (found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]) == (100, 2)


def test_answers_come_when_their_run_ends(native_server: TritonServer, native_repository: Path) -> None:
    """A request of one run does not wait for the second run of another request that came in the same call.

    Other work on the machine may delay the first answer in its caller, and never makes the second one come later.
    """
    delays = "dynamic_batching { max_queue_delay_microseconds: 30000000 preferred_batch_size: [17] } max_batch_size: 17"
    load(
        native_server,
        native_repository,
        "two_runs",
        config=f"{delays} instance_group {{ kind: KIND_CPU }}",
        plan=f"delay_us {RUN_S * 1e6:.0f}",
        parameters={"padfree_contexts": "1"},
    )
    (small,) = random_requests(9, 1, most=1)
    large = random_requests(10, 16, most=1)

    def answer_time(sequences: Any) -> float:
        (answer,) = call_all(native_server, "grpc", "two_runs", [tensors(sequences)], OUTPUTS)
        assert_right(answer, sequences)
        return time.monotonic()

    def seconds_between(pool: ThreadPoolExecutor) -> float:
        first = pool.submit(answer_time, small)
        waiting = 'nv_inference_pending_request_count{model="two_runs",version="1"} 1\n'
        wait_until(lambda: waiting in native_server.get("metrics", "metrics"), "the first request in the queue")
        second = pool.submit(answer_time, [each[0] for each in large])
        return second.result() - first.result()

    with ThreadPoolExecutor(2) as pool:
        found: list[float] = []
        while len(found) < ATTEMPTS and (not found or found[-1] <= RUN_S / 2):
            found.append(seconds_between(pool))
    assert found[-1] > RUN_S / 2, found


def test_cancelled_requests_do_not_run(native_server: TritonServer, native_repository: Path) -> None:
    load(
        native_server,
        native_repository,
        "slow",
        plan=f"delay_us {RUN_S * 1e6:.0f}",
        config="max_batch_size: 200 instance_group { kind: KIND_CPU } dynamic_batching { }",
    )
    (large,) = random_requests(11, 1, longest=64, most=1)
    many = [large[0]] * 160  # ten runs of 16 sequences

    async def cancel() -> None:
        import tritonclient.grpc as grpc
        import tritonclient.grpc.aio as aio

        client = aio.InferenceServerClient(native_server.url("grpc"))
        inputs = []
        for name, array in tensors(many).items():
            inputs.append(grpc.InferInput(name, list(array.shape), "INT32"))
            inputs[-1].set_data_from_numpy(array)
        call = asyncio.create_task(client.infer("slow", inputs))
        await asyncio.sleep(0.3)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.close()

    asyncio.run(cancel())
    (found,) = random_requests(12, 1)
    (answer,) = call_all(native_server, "grpc", "slow", [tensors(found)], OUTPUTS)
    assert_right(answer, found)
    assert 1 <= series(native_server, "padfree_runs_total", "slow") < 8
    assert series(native_server, "padfree_failed_requests_total", "slow") == 0


def test_unload_frees_what_the_model_held(native_server: TritonServer, native_repository: Path) -> None:
    def cycle() -> None:
        native_server.post("v2/repository/models/freed/load")
        requests = random_requests(13, 20)
        answers = call_all(native_server, "grpc", "freed", [tensors(each) for each in requests], OUTPUTS)
        for answer, sequences in zip(answers, requests, strict=True):
            assert_right(answer, sequences)
        native_server.post("v2/repository/models/freed/unload")
        wait_until(
            lambda: 'model="freed",instance' not in page() and "freed_0" not in page(), "its series off the page"
        )

    def page() -> str:
        return native_server.get("metrics", "metrics")

    write_model(native_repository, "freed", config="instance_group { kind: KIND_CPU count: 3 }")
    closed = re.compile(r"fake engine: closed, (\d+) engines and (\d+) lanes live")
    cycle()
    before = threads_of(native_server)
    count, live = len(closed.findall(log := native_server.log.read_text(errors="replace"))), closed.findall(log)[-1]
    for _ in range(5):
        cycle()
    found = closed.findall(native_server.log.read_text(errors="replace"))
    assert len(found) == count + 5
    assert found[-1] == live
    assert threads_of(native_server) <= before + 2  # the server's own pools may still grow


def test_reload_under_load(native_server: TritonServer, native_repository: Path) -> None:
    load(native_server, native_repository, "reloaded", plan="delay_us 2000")
    requests = random_requests(14, 40)
    stop = threading.Event()
    rounds: list[list[Answer]] = []

    def send() -> None:
        while not stop.is_set():
            rounds.append(call_all(native_server, "grpc", "reloaded", [tensors(each) for each in requests], OUTPUTS))

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            for _ in range(5):
                wanted = len(rounds) + 2
                wait_until(lambda wanted=wanted: len(rounds) >= wanted, "more rounds of requests")  # type: ignore[misc]
                native_server.post("v2/repository/models/reloaded/unload")
                native_server.post("v2/repository/models/reloaded/load")
        finally:
            stop.set()
        sending.result()
    served = [answer for answers in rounds for answer in answers if isinstance(answer, dict)]
    assert len(served) > len(requests)
    for answers in rounds:
        for answer, sequences in zip(answers, requests, strict=True):
            if isinstance(answer, Exception):
                assert NOT_SERVED.search(str(answer)), answer
            else:
                assert_right(answer, sequences)


def test_sigterm_lets_requests_finish(installed: Path, native_backends: Path, tmp_path: Path) -> None:
    config = "instance_group { kind: KIND_CPU } dynamic_batching { max_queue_delay_microseconds: 1500000 }"
    write_model(tmp_path / "repository", "plain", plan="delay_us 100000", config=config)
    requests = random_requests(15, 10, most=1)
    options = f"--backend-directory={native_backends}"
    with TritonServer(installed, [tmp_path / "repository"], tmp_path, options) as server, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(call_all, server, "grpc", "plain", [tensors(each) for each in requests], OUTPUTS)
        waiting = 'nv_inference_pending_request_count{model="plain",version="1"} 10\n'
        wait_until(lambda: waiting in server.get("metrics", "metrics"), "10 requests in the queue")
        server.terminate()
        answers = sent.result()
        assert server.wait() == 0
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences)


def test_a_server_that_is_killed_leaves_nothing_in_the_way(
    installed: Path, native_backends: Path, tmp_path: Path
) -> None:
    write_model(tmp_path / "repository", "plain", plan="delay_us 50000")
    requests = random_requests(16, 40, most=1)
    options = f"--backend-directory={native_backends}"
    shared = set(Path("/dev/shm").iterdir())
    for folder, is_killed in (("first", True), ("second", False)):
        (tmp_path / folder).mkdir()
        started = TritonServer(installed, [tmp_path / "repository"], tmp_path / folder, options)
        with started as server, ThreadPoolExecutor(1) as pool:
            sent = pool.submit(call_all, server, "grpc", "plain", [tensors(each) for each in requests], OUTPUTS)
            if is_killed:
                wait_until(lambda server=server: series(server, "padfree_runs_total", "plain") > 0, "a run")  # type: ignore[misc]
                server.kill()
            answers = sent.result()
        for answer, sequences in zip(answers, requests, strict=True):
            if not is_killed or isinstance(answer, dict):
                assert_right(answer, sequences)
    assert set(Path("/dev/shm").iterdir()) <= shared
