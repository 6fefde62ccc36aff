# SPDX-License-Identifier: Apache-2.0
"""Breaks a GPU under a pool, in a process of its own, and prints as JSON what became of the pool's runs.

    python tests/gpu/broken_gpu.py MODEL.PLAN DEVICE memory|trap

memory: all of the GPU's memory is taken, as if another program used it; only runs on that GPU fail. trap: a kernel
traps, after which CUDA fails on every GPU of this process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from padfree.runtime import Session
from padfree.runtime.gpu.cuda import check, driver, free_bytes, kept_device, runtime
from padfree.runtime.pool import DevicePool, machine_devices

RUNS = 20
TOLERANCE = 1e-2
SMALLEST_PIECE_BYTES = 1 << 16
TRAP = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry trap_here() { trap; }
\0"""


def break_down(device: int, how: str) -> None:
    """Makes one GPU unusable ("memory"), or the whole process ("trap")."""
    with kept_device():
        check(runtime.cudaSetDevice(device))
        check(runtime.cudaFree(0))
        if how == "memory":
            fill_memory()
            return
        module = check(driver.cuModuleLoadData(TRAP))
        kernel = check(driver.cuModuleGetFunction(module, b"trap_here"))
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        (status,) = runtime.cudaDeviceSynchronize()
        assert status != runtime.cudaError_t.cudaSuccess


def fill_memory() -> None:
    """Takes all memory of the current GPU, in ever smaller pieces, and keeps it."""
    piece = free_bytes()
    while piece >= SMALLEST_PIECE_BYTES:
        status, _ = runtime.cudaMalloc(piece)
        if status != runtime.cudaError_t.cudaSuccess:
            runtime.cudaGetLastError()  # otherwise the next launch would report this error as its own
            piece //= 2


def batch(seed: int) -> list[Any]:
    """Few enough sequences for one run."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 900, rng.integers(1, 100)) for _ in range(8)]


def agree(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> bool:
    """Whether answers agree to fp16's precision."""
    pairs = ((row, wanted) for name in expected for row, wanted in zip(found[name], expected[name], strict=True))
    return all(np.allclose(row, wanted, atol=TOLERANCE) for row, wanted in pairs)


def attempt(pool: DevicePool, seed: int) -> dict[str, list[Any]] | str:
    """A run's answers, or the message of its error."""
    try:
        return pool.run(batch(seed))
    except ValueError as error:
        return str(error)


def main(plan: Path, victim: int, how: str) -> None:
    """Computes the expected answers on another GPU, breaks one, runs the pool and prints the report."""
    devices = machine_devices()
    with Session(plan, device=devices[victim - 1], cuda_graphs=False) as session:
        expected = [session.run(batch(seed)) for seed in range(RUNS)]
    if len(devices) > 1:
        pool = DevicePool.open(plan, devices, cuda_graphs=False)
    else:
        pool = DevicePool({name: Session(plan, cuda_graphs=False) for name in ("GPU 0", "GPU 0 again")})
    break_down(victim, how)
    found = [attempt(pool, seed) for seed in range(RUNS)]
    told: dict[str, Any] = {
        "runs": RUNS,
        "right": sum(not isinstance(one, str) and agree(one, expected[seed]) for seed, one in enumerate(found)),
        "failures": pool.failures,
        "errors": [one for one in found if isinstance(one, str)],
        "closing": "",
    }
    try:
        pool.close()
    except ValueError as error:
        told["closing"] = str(error)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
