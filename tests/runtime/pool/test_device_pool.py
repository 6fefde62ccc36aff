# SPDX-License-Identifier: Apache-2.0
"""A pool of sessions on the CPU, and of sessions that can be held up and broken."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures as concurrent
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, Budget, FirstCome
from padfree.runtime.batching.dealing import modelled_costs
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.pool import DevicePool, read_devices
from padfree.runtime.request import RaggedBatch

PATIENCE_S = 20.0
ModelWriter = Callable[..., Path]


class Device:
    """A session that answers ids times ten: `gate` holds its runs up, `fault` makes them fail."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self.budget = Budget(100, 8)
        self.backend: Any = self
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.runs: list[list[int]] = []
        self.fault: Callable[[list[int]], bool] = lambda _ids: False
        self.closed = 0
        self.closing_fails = False

    def feeds(self, ragged: RaggedBatch) -> dict[str, Any]:
        return dict(ragged.tokens)

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        self.work(feeds["input_ids"].tolist())
        return {"tens": feeds["input_ids"] * 10}

    def work(self, ids: list[int]) -> None:
        self.runs.append(ids)
        self.started.release()
        assert self.gate.wait(PATIENCE_S)
        if self.fault(ids):
            raise RuntimeError("the GPU does not like it")

    def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[Any]]:
        self.work(ragged.tokens["input_ids"].tolist())
        return {"tens": [row * 10 for row in ragged.rows()["input_ids"]]}

    def close(self) -> None:
        self.closed += 1
        if self.closing_fails:
            raise SessionError("CUDA failed with cudaErrorIllegalAddress")


@pytest.fixture
def devices(packed_metadata: dict[str, Any]) -> Iterator[list[Device]]:
    metadata = parse_metadata(packed_metadata, "test")
    items = [Device(metadata) for _ in range(3)]
    yield items
    for device in items:
        device.gate.set()


@pytest.fixture
def pool(devices: list[Device]) -> Iterator[DevicePool]:
    with DevicePool({f"GPU {at}": device for at, device in enumerate(devices)}) as result:
        yield result


def tens(results: dict[str, list[Any]]) -> list[list[int]]:
    return [row.tolist() for row in results["tens"]]


def test_sessions_on_the_cpu_answer_as_one_session_does(packed_model: ModelWriter, padded_model: ModelWriter) -> None:
    rng = np.random.default_rng(0)
    for write in (packed_model, padded_model):
        path = write()
        with Session(path) as alone, DevicePool({"a": Session(path), "b": Session(path)}) as both:
            for count in (0, 1, 7, 300, 2500):  # the last has more tokens than a run on a CPU takes
                batch = [rng.integers(0, 100, rng.integers(0, 17)).tolist() for _ in range(count)]
                expected, actual = alone.run(batch), both.run(batch)
                assert list(actual) == list(expected)
                for name, rows in expected.items():
                    assert [row.tolist() for row in actual[name]] == [row.tolist() for row in rows]
            if alone.metadata.is_packed:
                expected, actual = (one.run_packed([5, 6, 7, 0], [1, 2], filler_tokens=1) for one in (alone, both))
                assert {name: value.tolist() for name, value in actual.items()} == {
                    name: value.tolist() for name, value in expected.items()
                }
            assert min(one.runs for one in both.stats.values()) > 0


def test_a_run_goes_to_who_has_least_to_do(pool: DevicePool, devices: list[Device]) -> None:
    for device in devices:
        device.gate.clear()
    with ThreadPoolExecutor(4) as threads:
        futures = []
        for at, ids in enumerate(([1] * 16, [2], [3] * 8, [4])):
            futures.append(threads.submit(pool.run, [ids]))
            end = time.monotonic() + PATIENCE_S
            while sum(len(device.runs) for device in devices) <= at:  # it is under way before the next one comes
                assert time.monotonic() < end
                time.sleep(0.001)
        for device in devices:
            device.gate.set()
        assert [tens(future.result(PATIENCE_S)) for future in futures] == [[[10] * 16], [[20]], [[30] * 8], [[40]]]
    assert [device.runs for device in devices] == [[[1] * 16], [[2], [4]], [[3] * 8]]


def test_a_batch_of_many_runs_goes_to_all_and_comes_back_in_order(pool: DevicePool, devices: list[Device]) -> None:
    rng = np.random.default_rng(3)
    batch = [rng.integers(2, 100, rng.integers(0, 17)).tolist() for _ in range(200)]
    assert tens(pool.run(batch)) == [[10 * value for value in ids] for ids in batch]
    assert min(len(device.runs) for device in devices) > 0
    assert all(len(ids) <= 100 for device in devices for ids in device.runs)


def test_idle_devices_share_a_run_that_is_worth_it(devices: list[Device]) -> None:
    for device in devices:
        device.budget = Budget(1000, 100)
        device.gate.clear()
    costs = modelled_costs("packed")
    slow = dataclasses.replace(
        costs, cost_ms=tuple(tuple(100 * (cost or 0) for cost in row) for row in costs.cost_ms), environment={}
    )
    pool = DevicePool(dict(zip("abc", devices, strict=True)), costs=slow)
    batch = [[at] * 10 for at in range(60)]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.run, batch)
        for device in devices:
            assert device.started.acquire(timeout=PATIENCE_S)
        second = threads.submit(pool.run, batch)  # no device is idle now
        while sum(len(device.runs) for device in devices) < 4:
            assert not second.done()
        for device in devices:
            device.gate.set()
        assert tens(first.result(PATIENCE_S)) == tens(second.result(PATIENCE_S)) == [[10 * at] * 10 for at in range(60)]
    assert [len(device.runs[0]) for device in devices] == [200, 200, 200]
    assert sum(len(device.runs) for device in devices) == 4
    pool.close()


def test_a_device_that_fails_is_named_and_taken_out(pool: DevicePool, devices: list[Device]) -> None:
    devices[0].fault = lambda _ids: True
    for _ in range(5):
        assert tens(pool.run([[1, 2]])) == [[10, 20]]
    assert pool.devices == ["GPU 1", "GPU 2"]
    assert pool.failures == {"GPU 0": "the GPU does not like it"}
    assert len(devices[0].runs) == 1
    batch = [[at % 100] * 16 for at in range(100)]
    assert tens(pool.run(batch)) == [[10 * (at % 100)] * 16 for at in range(100)]
    assert pool.run_packed([3, 4], [2])["tens"].tolist() == [30, 40]


def test_a_request_that_fails_everywhere_takes_nobody_out(pool: DevicePool, devices: list[Device]) -> None:
    for device in devices:
        device.fault = lambda ids: 66 in ids
    with pytest.raises(SessionError, match=r"failed on all 3 devices in use \(GPU 0: the GPU does not like it; GPU"):
        pool.run([[1, 66]])
    with pytest.raises(SessionError, match="failed on all 3 devices"):
        pool.run([[at % 100] * 16 for at in range(300)])
    assert pool.failures == {}
    assert tens(pool.run([[1, 2]])) == [[10, 20]]


def test_the_last_device_stays_and_passes_its_own_error_on(pool: DevicePool, devices: list[Device]) -> None:
    for device in devices[:2]:
        device.fault = lambda _ids: True
    pool.run([[1]])
    pool.run([[1]])
    assert pool.devices == ["GPU 2"]
    devices[2].fault = lambda _ids: True
    with pytest.raises(RuntimeError, match="does not like it"):
        pool.run([[1]])
    devices[2].fault = lambda _ids: False
    assert tens(pool.run([[1]])) == [[10]]


def test_one_batcher_fills_all_devices(pool: DevicePool, devices: list[Device]) -> None:
    for device in devices:
        device.gate.clear()
    with Batcher(pool, FirstCome(Budget(16, 1)), runs=pool.runs) as batcher:
        futures = [batcher.submit([at]) for at in range(12)]
        for device in devices:
            for _ in range(2):  # one for each context
                assert device.started.acquire(timeout=PATIENCE_S)
        for device in devices:
            device.gate.set()
        assert [future.result(PATIENCE_S)["tens"].tolist() for future in futures] == [[10 * at] for at in range(12)]


def test_close_waits_and_closes_all(pool: DevicePool, devices: list[Device]) -> None:
    devices[0].gate.clear()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(pool.run, [[1]])
        assert devices[0].started.acquire(timeout=PATIENCE_S)
        closing = threads.submit(pool.close)
        with pytest.raises(concurrent.TimeoutError):
            closing.result(0.1)
        assert [device.closed for device in devices] == [0, 0, 0]
        devices[0].gate.set()
        closing.result(PATIENCE_S)
        assert tens(running.result(PATIENCE_S)) == [[10]]
    with pytest.raises(SessionError, match="the pool is closed; open a new one"):
        pool.run([[1]])
    pool.close()
    assert [device.closed for device in devices] == [1, 1, 1]


def test_a_device_beyond_closing_is_said_and_the_others_close(
    devices: list[Device], caplog: pytest.LogCaptureFixture
) -> None:
    pool = DevicePool(dict(zip("abc", devices, strict=True)))
    devices[0].fault, devices[0].closing_fails = (lambda _ids: True), True
    pool.run([[1]])
    pool.close()
    assert [device.closed for device in devices] == [1, 1, 1]
    assert "a is no longer used, and cannot be closed either" in caplog.text
    healthy = DevicePool({"d": devices[0], "e": devices[1]})
    with pytest.raises(SessionError, match="cudaErrorIllegalAddress"):
        healthy.close()
    assert devices[1].closed == 2


def test_requests_that_mean_nothing_reach_no_device(pool: DevicePool, devices: list[Device]) -> None:
    for refused in ([[1000]], [[1] * 17], {"words": [[1]]}):
        with pytest.raises(SessionError):
            pool.run(refused)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match="seq_lens add up to 3"):
        pool.run_packed([1, 2], [3])
    assert [device.runs for device in devices] == [[], [], []]
    assert pool.failures == {}


def test_pools_of_nothing_of_two_models_or_on_the_cpu_are_refused(
    packed_model: ModelWriter, padded_model: ModelWriter
) -> None:
    with pytest.raises(SessionError, match="the pool has no sessions, allowed: one or more"):
        DevicePool({})
    with Session(packed_model()) as one, Session(padded_model()) as other:
        with pytest.raises(SessionError, match="b runs another model than the devices before it"):
            DevicePool({"a": one, "b": other})
        with pytest.raises(SessionError, match="the cost table is of a padded model"):
            DevicePool({"a": one}, costs=modelled_costs("padded"))
    with pytest.raises(SessionError, match=r"an \.onnx file runs on the CPU, allowed: plans"):
        DevicePool.open(packed_model(), [0, 1])


def test_gpus_as_a_user_names_them() -> None:
    assert read_devices("all") is None
    assert read_devices("0") == (0,)
    assert read_devices("3,1") == (3, 1)
    for text in ("", "0,", "0,0", "-1", "gpu", "0 1", "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(SessionError, match="allowed: all, or different numbers by commas; pass --gpus 0,1"):
            read_devices(text)
