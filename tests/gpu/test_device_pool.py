# SPDX-License-Identifier: Apache-2.0
"""A pool on all GPUs of the machine, or of two sessions if there is only one GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder import cli
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.pool import DevicePool, machine_devices

from tests.support.folders import write_folder
from tests.support.served_models import Server
from tests.support.skips import without

from .conftest import MAX_SEQ_LEN

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

Array = npt.NDArray[Any]

VOCABULARY = 930
TOLERANCE = 1e-2  # fp16 through two layers, outputs of magnitude 1; other batches may run other kernels
SERVING = ("starlette", "uvicorn", "orjson")
BREAKING = Path(__file__).with_name("broken_gpu.py")


def open_pool(plan: Path, **options: Any) -> DevicePool:
    devices = machine_devices()
    if len(devices) > 1:
        return DevicePool.open(plan, devices, **options)
    return DevicePool({name: Session(plan, **options) for name in ("GPU 0", "GPU 0 again")})


@pytest.fixture
def pool(plan: Path) -> Iterator[DevicePool]:
    with open_pool(plan) as opened:
        yield opened


def random_batch(rng: np.random.Generator, most: int) -> list[Array]:
    return [rng.integers(0, VOCABULARY, rng.integers(0, MAX_SEQ_LEN + 1)) for _ in range(rng.integers(1, most))]


def check(results: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    assert list(results) == list(expected)
    for name, rows in expected.items():
        assert len(rows) == len(results[name])
        for row, wanted in zip(results[name], rows, strict=True):
            np.testing.assert_allclose(row, wanted, atol=TOLERANCE)


def test_all_gpus_give_the_answers_of_one(pool: DevicePool, plain: Session) -> None:
    batches = [random_batch(np.random.default_rng(seed), 100) for seed in range(12)]
    expected = [plain.run(batch) for batch in batches]

    def work(start: int) -> None:
        for at in range(36):  # sizes repeat, so that graphs are captured on every GPU
            which = (start + at) % len(batches)
            check(pool.run(batches[which]), expected[which])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert min(one.runs for one in pool.stats.values()) > 10
    assert pool.failures == {}


def test_a_batcher_fills_all_gpus(pool: DevicePool, plain: Session) -> None:
    batch = random_batch(np.random.default_rng(5), 400)
    with Batcher(pool, FirstCome(pool.budget), runs=pool.runs) as batcher:
        futures = [batcher.submit(ids) for ids in batch]
        rows = [future.result(60) for future in futures]
    check({name: [row[name] for row in rows] for name in rows[0]}, plain.run(batch))
    assert min(one.runs for one in pool.stats.values()) > 0


def test_packed_tokens_run_on_any_of_them(pool: DevicePool, plain: Session) -> None:
    ids, lens = np.arange(40) % VOCABULARY, [25, 10]
    for _ in range(4):
        found, expected = (one.run_packed(ids, lens, filler_tokens=5) for one in (pool, plain))
        for name, values in expected.items():
            rows = 35 if len(values) == 40 else len(values)
            np.testing.assert_allclose(found[name][:rows], values[:rows], atol=TOLERANCE)


def test_opening_and_running_leave_the_thread_on_its_gpu(plan: Path) -> None:
    from padfree.runtime.gpu.cuda import check, runtime

    check(runtime.cudaSetDevice(0))
    with open_pool(plan) as pool:
        pool.run(random_batch(np.random.default_rng(0), 100))
        assert check(runtime.cudaGetDevice()) == 0
    assert check(runtime.cudaGetDevice()) == 0


def break_pool(plan: Path, victim: int, how: str) -> dict[str, Any]:
    """The report of a process that broke a GPU under its pool."""
    command = [sys.executable, str(BREAKING), str(plan), str(victim), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("victim", [0, 1])
def test_a_gpu_without_memory_is_taken_out_and_the_others_answer(plan: Path, victim: int) -> None:
    if len(machine_devices()) == 1:
        pytest.skip("there is only one GPU")
    told = break_pool(plan, victim, "memory")
    assert told["right"] == told["runs"], told
    assert list(told["failures"]) == [f"GPU {victim}"], told
    assert "memory" in told["failures"][f"GPU {victim}"].lower(), told
    assert told["closing"] == ""


def test_where_cuda_fails_for_the_whole_process_every_run_says_so(plan: Path) -> None:
    """After a kernel has trapped, CUDA fails on every GPU of the process, and no single one is to blame."""
    told = break_pool(plan, 0, "trap")
    assert told["right"] == 0, told
    assert told["failures"] == {}, told
    assert len(told["errors"]) == told["runs"]
    assert all("the run failed on all" in error and "cudaError" in error for error in told["errors"]), told


def test_the_server_uses_all_gpus(tmp_path: Path) -> None:
    reason = without(*SERVING)
    if reason is not None:
        pytest.skip(reason)
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    folder = write_folder(tmp_path / "model", modules=modules, max_seq_length=64)
    plan = tmp_path / "model.plan"
    assert cli.main(["build", str(folder), "-o", str(plan), "--max-batch", "8", "--max-seq-len", "64"]) == 0
    texts = (DEMO_DATA / "texts.txt").read_text("utf-8").splitlines()[:64]
    found = []
    for options in (["--gpus", "all"], ["--device", "0"]):
        with Server(plan, "--processes", "1", *options) as server:
            body = json.dumps({"inputs": texts}).encode()
            request = urllib.request.Request(f"{server.url}/embed", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                found.append(np.array(json.load(answer)))
            with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
                page = answer.read().decode()
            expected = len(machine_devices()) if options[0] == "--gpus" else 1
            assert f"padfree_devices {expected}\n" in page
    assert found[0].shape[0] == len(texts)
    np.testing.assert_allclose(found[0], found[1], atol=TOLERANCE)
