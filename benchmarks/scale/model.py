# SPDX-License-Identifier: Apache-2.0
"""A job's time on several GPUs: the slowest of its stages, shards dealt one by one, the start, and the last shards.

A GPU's stages work at the same time, so that the slowest one determines the texts per second: reading, tokenising, the
GPU, writing, or the store that all share. A GPU takes the next shard when it has finished one. Shards differ by the
lengths in them, and GPUs by their measured speed, so that at the end some wait for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from padfree.runtime.batching.dealing import SQUARES_A_TOKEN

GIGA = 1e9
SIMULATIONS = 20
MUCH = 0.1
"""Share of the whole time from which on the start, or the wait for the last shards, counts as the bottleneck."""


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Attributes:
        texts: how many.
        tokens_a_text: their mean.
        bytes_a_token: of text as it is read.
        bytes_a_vector: of a result as it is written.
        shard_texts: texts of a shard, which is one file of results.
    """

    texts: float = 1e9
    tokens_a_text: float = 200.0
    bytes_a_token: float = 4.5
    bytes_a_vector: float = 1536.0
    shard_texts: int = 100_000

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return max(1, round(self.texts / self.shard_texts))

    @property
    def bytes_in(self) -> float:
        """Bytes read per text."""
        return self.tokens_a_text * self.bytes_a_token


@dataclass(frozen=True)
class Machines:
    """What it is done on.

    Attributes:
        gpu_tokens_per_s: of one GPU, from ids to vectors.
        core_tokens_per_s: that one core tokenises.
        cores_a_gpu: that tokenise for one GPU.
        gpus_a_machine: GPUs that share a machine's network.
        network_gb_per_s: of a machine, each way.
        store_gb_per_s: of the store for all machines together, both ways.
        store_puts_per_s: objects that the store takes per second.
        start_s: from nothing until the first shard is under way: a process, its libraries, the plan.
        spread: standard deviation of the time for the same work, between GPUs, as a share of it.
        price_a_gpu_hour: in whatever currency.
    """

    gpu_tokens_per_s: float
    core_tokens_per_s: float
    cores_a_gpu: float = 8.0
    gpus_a_machine: int = 8
    network_gb_per_s: float = 12.5
    store_gb_per_s: float = 100.0
    store_puts_per_s: float = 3500.0
    start_s: float = 30.0
    spread: float = 0.02
    price_a_gpu_hour: float = 3.0


@dataclass(frozen=True)
class Forecast:
    """The forecast for a job on a number of GPUs.

    Attributes:
        gpus: how many.
        seconds: until the last vector is written, the mean of simulations.
        rate: texts per second and GPU, while all work.
        binds: the bottleneck, of which more would make the job end sooner.
        start_share: the start's share of the time.
        tail_share: the share in which GPUs wait for the last shards.
        read_gb_per_s, write_gb_per_s: all GPUs together, while all work.
        cores: that tokenise all the time, of all machines.
        cost: of the GPUs, from the start to the end.
    """

    gpus: int
    seconds: float
    rate: float
    binds: str
    start_share: float
    tail_share: float
    read_gb_per_s: float
    write_gb_per_s: float
    cores: float
    cost: float

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs, from the start to the end."""
        return self.gpus * self.seconds / 3600


def stages(job: Job, machines: Machines, gpus: int) -> Mapping[str, float]:
    """Texts per second and GPU that each stage could process by itself."""
    network = machines.network_gb_per_s * GIGA / min(gpus, machines.gpus_a_machine)
    return {
        "GPU": machines.gpu_tokens_per_s / job.tokens_a_text,
        "tokenising": machines.cores_a_gpu * machines.core_tokens_per_s / job.tokens_a_text,
        "reading": network / job.bytes_in,
        "writing": network / job.bytes_a_vector,
        "the store's bytes": machines.store_gb_per_s * GIGA / gpus / (job.bytes_in + job.bytes_a_vector),
        "the store's objects": machines.store_puts_per_s / gpus * job.shard_texts,
    }


def shard_work(job: Job, lengths: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Each shard's work relative to the mean: tokens and squared lengths of texts drawn from `lengths`.

    The sum of so many texts is normal with their variance (the central limit theorem), so that they need not be drawn.
    """
    sizes = lengths * (job.tokens_a_text / lengths.mean())
    work = sizes + sizes * sizes / SQUARES_A_TOKEN
    deviation = float(work.std() / work.mean()) / np.sqrt(job.shard_texts)
    return np.asarray(np.maximum(1 + deviation * rng.standard_normal(job.shards), 0.0))


def last_end(work: npt.NDArray[np.float64], speeds: npt.NDArray[np.float64]) -> float:
    """When the last shard ends, in times of a mean shard: each goes to the first GPU that is free."""
    free = [(0.0, at) for at in range(speeds.size)]
    end = 0.0
    for amount in work.tolist():
        begin, at = free[0]
        ended = begin + amount / speeds[at]
        heapq.heapreplace(free, (ended, at))
        end = max(end, ended)
    return end


def forecast(job: Job, machines: Machines, gpus: int, lengths: npt.NDArray[np.int64], *, seed: int = 0) -> Forecast:
    """Computes a job's time and cost.

    Args:
        job: the job.
        machines: the machines that it runs on.
        gpus: how many GPUs.
        lengths: tokens of real texts, whose relative spread the job's texts have around their own mean.
        seed: the seed of the simulations.
    """
    rates = stages(job, machines, gpus)
    binds, rate = min(rates.items(), key=lambda stage: stage[1])
    rng = np.random.default_rng(seed)
    ends = []
    for _ in range(SIMULATIONS):
        speeds = np.maximum(1 + machines.spread * rng.standard_normal(gpus), 0.1)
        ends.append(last_end(shard_work(job, lengths, rng), speeds))
    shard_s = job.texts / job.shards / rate
    working_s, ideal_s = float(np.mean(ends)) * shard_s, job.texts / rate / gpus
    seconds = machines.start_s + working_s
    start_share, tail_share = machines.start_s / seconds, max(0.0, working_s - ideal_s) / seconds
    if max(start_share, tail_share) > MUCH:
        binds = "the start" if start_share >= tail_share else "the last shards"
    return Forecast(
        gpus=gpus,
        seconds=seconds,
        rate=rate,
        binds=binds,
        start_share=start_share,
        tail_share=tail_share,
        read_gb_per_s=gpus * rate * job.bytes_in / GIGA,
        write_gb_per_s=gpus * rate * job.bytes_a_vector / GIGA,
        cores=gpus * rate * job.tokens_a_text / machines.core_tokens_per_s,
        cost=gpus * seconds / 3600 * machines.price_a_gpu_hour,
    )
