# SPDX-License-Identifier: Apache-2.0
"""A worker reports every batch, and shards on a CPU are small enough for several workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from padfree.bulk import LocalWorkers, Progress, Request, Running, WorkerSpec, embed, on_cpu
from padfree.bulk.locations import Location
from padfree.bulk.manifest import read_manifest
from padfree.bulk.workers import local
from padfree.bulk.workers.base import BatchProgress, Event
from padfree.bulk.workers.worker import Worker

from tests.support.bulk_jobs import run_here, texts

TEXTS = 1100


@pytest.fixture
def request_(tmp_path: Path, embedder: Path) -> Request:
    (tmp_path / "in.txt").write_text("\n".join(texts(TEXTS)) + "\n", encoding="utf-8")
    return Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), embedder)


def spec_of(request: Request, **changes: Any) -> WorkerSpec:
    """The specification that a job's workers would get; no shard is done."""
    results: list[WorkerSpec] = []

    def refuse(spec: WorkerSpec) -> LocalWorkers:
        results.append(spec)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        embed(replace(request, **changes), Running(), refuse)
    return results[0]


def test_a_worker_tells_of_every_batch(request_: Request) -> None:
    reports = list[tuple[int, int, int]]()
    worker = Worker(spec_of(request_, shard_rows=2000, max_tokens=200), lambda *batch: reports.append(batch))
    done = worker.submit(0).result()
    worker.close()
    assert {shard for shard, _, _ in reports} == {0}
    assert sum(rows for _, rows, _ in reports) == TEXTS
    assert sum(tokens for _, _, tokens in reports) == done.part.tokens
    assert max(tokens for _, _, tokens in reports) <= 200


def test_batches_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[Event]()
    monkeypatch.setattr(local, "TELL_S", 3600.0)
    message = local._Reporter(2, events.append)
    message.add(0, 5, 50)
    message.add(1, 1, 10)
    assert not events
    monkeypatch.setattr(local, "TELL_S", 0.0)
    message.add(0, 5, 50)
    message.add(1, 2, 20)
    assert events == [BatchProgress(2, 0, 10, 100), BatchProgress(2, 1, 1, 10), BatchProgress(2, 1, 2, 20)]


def test_workers_on_a_cpu_share_a_thousand_texts(request_: Request) -> None:
    seen = list[Progress]()
    result = on_cpu(2)
    finished = embed(
        request_, Running(), lambda spec: LocalWorkers(spec, *result), on_progress=seen.append, read_back=True
    )
    assert finished.report.shards == 2
    assert all(worker.tokens for worker in finished.report.workers)
    assert seen[-1].rows == TEXTS


def test_a_result_with_other_shards_goes_on(request_: Request) -> None:
    """The same holds for results that were begun with another default."""
    first = run_here(replace(request_, shard_rows=600)).report
    part = sorted(Path(request_.output).glob("part-*"))[0]
    part.unlink()
    again = run_here(request_).report
    assert (first.shards, again.shards, again.shards_found) == (2, 2, 1)
    assert read_manifest(Location.of(request_.output)).options.shard_rows == 600
