# SPDX-License-Identifier: Apache-2.0
"""A pool of several GPUs that live on the host: each GPU's streams, memory and contexts are used on it alone."""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.pool import DevicePool


@pytest.fixture
def plan(setup: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan that a Session opens on these GPUs."""
    content = b"an engine"
    raw = dict(setup.metadata.raw)
    digest = hashlib.sha256(content).hexdigest()
    raw["engine"] = {**raw["engine"], "plan_bytes": len(content), "plan_sha256": digest}
    path: Path = setup.plan
    path.write_bytes(content)
    path.with_name(f"{path.name}.json").write_text(json.dumps(raw), encoding="utf-8")
    monkeypatch.setattr("padfree.runtime.session.import_tensorrt", lambda: None)
    return path


def check(results: dict[str, list[Any]], batch: list[list[int]]) -> None:
    assert [row.tolist() for row in results["hidden"]] == [[[value, 0] for value in ids] for ids in batch]
    assert [row.tolist() for row in results["lengths"]] == [[len(ids)] for ids in batch]


def random_batch(rng: np.random.Generator, most: int) -> list[list[int]]:
    return [rng.integers(0, 90, rng.integers(0, 17)).tolist() for _ in range(rng.integers(1, most))]


def test_all_gpus_work_for_many_threads_and_each_within_itself(setup: Any, plan: Path) -> None:
    with DevicePool.open(plan, cuda_graphs=False) as pool:
        assert pool.devices == ["GPU 0", "GPU 1", "GPU 2"]
        assert pool.runs == 6

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(30):
                batch = random_batch(rng, 60)
                check(pool.run(batch), batch)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(6)))
        assert set(setup.machine.runs_on) == {0, 1, 2}
        assert setup.machine.current == 0, "opening left this thread on its own GPU"
        assert sum(one.runs for one in pool.stats.values()) == len(setup.machine.runs_on)
        assert all(one.busy_s > 0 and one.tokens > 0 for one in pool.stats.values())
    assert setup.machine.open_streams == setup.machine.open_blocks == 0


def test_a_gpu_that_breaks_is_taken_out_and_the_others_go_on(setup: Any, plan: Path) -> None:
    rng = np.random.default_rng(1)
    with (
        DevicePool.open(plan, [0, 2], cuda_graphs=False) as pool,
        Batcher(pool, FirstCome(pool.budget), runs=pool.runs) as batcher,
    ):
        setup.machine.broken = {0}
        for _ in range(8):
            batch = random_batch(rng, 40)
            check(pool.run(batch), batch)
        assert pool.devices == ["GPU 2"]
        assert list(pool.failures) == ["GPU 0"]
        assert "TensorRT failed to run the engine: the newest error" in pool.failures["GPU 0"]
        futures = [batcher.submit([value]) for value in range(20)]
        assert [future.result(20)["hidden"].tolist() for future in futures] == [[[value, 0]] for value in range(20)]
        setup.machine.runs_on.clear()
        pool.run([[1, 2]])
        assert setup.machine.runs_on == [2]


def test_gpus_that_all_fail_stay_and_their_reasons_are_told(setup: Any, plan: Path) -> None:
    with DevicePool.open(plan, [0, 1], cuda_graphs=False) as pool:
        setup.machine.broken = {0, 1}
        with pytest.raises(SessionError, match=r"failed on all 2 devices in use \(GPU \d: .*; GPU \d: .*\); check"):
            pool.run([[1, 2]])
        setup.machine.broken = set()
        check(pool.run([[1, 2]]), [[1, 2]])
        assert pool.failures == {}


def test_a_session_that_does_not_open_closes_those_before_it(
    setup: Any, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = setup.cuda.open_device

    def refuse(index: int) -> Any:
        if index == 2:
            raise SessionError("no GPU number 2")
        return opened(index)

    monkeypatch.setattr(sys.modules["padfree.runtime.gpu.engine"], "open_device", refuse)
    with pytest.raises(SessionError, match="no GPU number 2"):
        DevicePool.open(plan)
    with DevicePool.open(plan, [0, 1]) as pool:
        check(pool.run([[1, 2]]), [[1, 2]])
        assert setup.machine.open_streams == 1
    assert setup.machine.open_streams == 0, "streams go with the last session of a GPU: none is left from before"


def test_devices_that_mean_nothing_are_refused(setup: Any, plan: Path) -> None:
    for devices in ([], [1, 1]):
        with pytest.raises(SessionError, match=r"devices are \[.*\], allowed: one or more different numbers"):
            DevicePool.open(plan, devices)
    setup.machine.devices = 0
    with pytest.raises(SessionError, match="no GPU that CUDA can use on this machine"):
        DevicePool.open(plan)
