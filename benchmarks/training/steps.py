# SPDX-License-Identifier: Apache-2.0
"""Steps per second of training on all GPUs of the machine, with balanced batches and with batches in the order of rows.

Every process trains with both kinds of batches in turn, for some seconds each and twice, so that drift affects both.
Both ways have the same rows in a step, but distribute them differently.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from padfree.training import BalancedBatchSampler, imbalances
from torch.nn.parallel import DistributedDataParallel

from .batches import both_ways
from .encoder import Encoder, loss_of, packed_batch

WAYS = ("balanced", "unbalanced")
ROUNDS, TOGETHER = 2, 20
"""Turns of each way, and steps between two looks at the clock, which all ranks take together."""
ALONE, ALONE_WARM_UP = 40, 5
"""Steps, and steps of warm-up, for the time of each rank alone."""


def measure(lengths: npt.NDArray[np.int64], *, batches: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Trains with one process per GPU; one record per size of batches, of all ranks together."""
    ranks = torch.cuda.device_count()
    if ranks < 2:
        raise SystemExit(f"{ranks} GPUs, allowed: 2 or more; leave --steps out to compute the imbalance alone")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = torch.multiprocessing.spawn
        spawn(train, (ranks, port, lengths, tuple(batches), seconds, folder), nprocs=ranks)
        for batch in batches:
            yield torch.load(Path(folder) / f"{batch}.pt", weights_only=False)


def steps_of(lengths: npt.NDArray[np.int64], batch: int, ranks: int) -> dict[str, list[list[list[int]]]]:
    """The steps of an epoch, both ways."""
    sampler = BalancedBatchSampler(lengths, batch, replicas=ranks, drop_last=True)
    pairs = list(both_ways(sampler))
    return {way: [pair[at] for pair in pairs] for at, way in enumerate(WAYS)}


def train(
    rank: int,
    ranks: int,
    port: int,
    lengths: npt.NDArray[np.int64],
    batches: Sequence[int],
    seconds: float,
    folder: str,
) -> None:
    """The main function of one process."""
    # NVLink's multicast is not available on every machine, and these few gradients do not need it.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder().cuda(), device_ids=[rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for batch in batches:
        record = train_both_ways(model, optimizer, lengths, rank, batch, seconds)
        if rank == 0:
            print(record, flush=True)
            torch.save(record, Path(folder) / f"{batch}.pt")
    dist.destroy_process_group()


def train_both_ways(
    model: Any, optimizer: Any, lengths: npt.NDArray[np.int64], rank: int, batch: int, seconds: float
) -> dict[str, Any]:
    """Trains with one batch size, both ways."""
    ranks = dist.get_world_size()
    steps = steps_of(lengths, batch, ranks)
    record: dict[str, Any] = {"case": f"steps, {ranks} GPUs x {batch}", "ranks": ranks, "batch": batch}
    done = dict.fromkeys(WAYS, 0)
    took_s = dict.fromkeys(WAYS, 0.0)
    endless = {way: cycle(steps[way]) for way in WAYS}
    for way in WAYS:
        run(model, optimizer, endless[way], lengths, rank, seconds=0.0)
    for way in WAYS * ROUNDS:
        counted, seconds_taken = run(model, optimizer, endless[way], lengths, rank, seconds=seconds / ROUNDS)
        done[way] += counted
        took_s[way] += seconds_taken
    own_ms = {way: compute_ms(model, steps[way], lengths, rank) for way in WAYS}
    for way in WAYS:
        result = imbalances(steps[way], lengths)
        record |= {
            f"{way}_steps_per_s": round(done[way] / took_s[way], 3),
            f"{way}_steps": done[way],
            f"{way}_mean": round(float(result.mean()), 5),
            f"{way}_p99": round(float(np.percentile(result, 99)), 5),
            f"{way}_compute_ms": own_ms[way],
        }
    return {**record, "gain": round(record["balanced_steps_per_s"] / record["unbalanced_steps_per_s"], 4)}


def run(
    model: Any, optimizer: Any, steps: Iterator[Any], lengths: npt.NDArray[np.int64], rank: int, *, seconds: float
) -> tuple[int, float]:
    """Trains for `seconds`, at least TOGETHER steps; returns how many steps were made, and how long they took."""
    done = 0
    go_on = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    while go_on.item():
        for _ in range(TOGETHER):
            rows = next(steps)[rank]
            loss_of(model, packed_batch(lengths[rows], seed=rows[0])).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
        go_on.fill_(time.perf_counter() - start < seconds)
        dist.broadcast(go_on, 0)  # makes all ranks stop after the same step
    torch.cuda.synchronize()
    return done, time.perf_counter() - start


def compute_ms(
    model: Any, steps: Sequence[Sequence[Sequence[int]]], lengths: npt.NDArray[np.int64], rank: int
) -> dict[str, float]:
    """A rank's own time for forward and backward, without waiting for others: the mean of all ranks, and the slowest.

    Both are means over some steps. The slowest over the mean, minus 1, is the imbalance that the GPUs really had.
    """
    times = []
    for shares in steps[: ALONE + ALONE_WARM_UP]:
        data = packed_batch(lengths[shares[rank]], seed=0)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with model.no_sync():
            begin.record()
            loss_of(model, data).backward()
            end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    model.zero_grad(set_to_none=True)
    own = torch.tensor(times[ALONE_WARM_UP:], device="cuda")
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, own)
    table = torch.stack(everybody)
    return {"mean": round(float(table.mean()), 3), "slowest": round(float(table.max(0).values.mean()), 3)}
