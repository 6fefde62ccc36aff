# SPDX-License-Identifier: Apache-2.0
"""The load generator without a server: what it sends and when, how it finds a limit, and what it reports."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tritonclient.http")

from padfree.builder.demo.demo import DEMO_DATA

from benchmarks.load import openai_client, report
from benchmarks.load.client import Answer, Outcome, Target, judge, judge_request
from benchmarks.load.fleet import Fleet, percentiles, summary
from benchmarks.load.memory import family, host_mib
from benchmarks.load.reference import check_apart
from benchmarks.load.session_rate import batches
from benchmarks.load.soak import total
from benchmarks.load.steps import find_limit
from benchmarks.load.texts import TextTraffic
from benchmarks.load.traffic import SHORTEST, Request, Traffic, arrivals
from benchmarks.load.worker import Notes, Order, perform
from benchmarks.pages import load_plot


def step(rate: float, p99: float | None = 5.0, answered: float | None = None, **changes: Any) -> dict[str, Any]:
    counts = {"requests": 10, "right": 10, "wrong": 0, "refused": 0, "lost": 0}
    rates = {"offered_per_s": rate, "meant_per_s": rate, "answered_per_s": rate if answered is None else answered}
    latency = {"p50": 1.0, "p99": p99}
    return {**counts, **rates, "texts_per_s": rate, "tokens_per_s": 100 * rate, "latency_ms": latency, **changes}


class DelayedClient:
    """A client whose answers come `seconds` after their requests, with at most `most` requests under way."""

    def __init__(self, seconds: float, most: int, never: Sequence[int] = ()) -> None:
        self._seconds, self._most, self._never = seconds, most, never
        self._under_way: deque[tuple[int, float]] = deque()

    def can_send(self) -> bool:
        return len(self._under_way) < self._most

    def send(self, ticket: int, request: int) -> None:  # noqa: ARG002
        if ticket not in self._never:
            self._under_way.append((ticket, time.perf_counter() + self._seconds))

    def wait(self, seconds: float) -> list[Answer]:
        now, until = time.perf_counter(), time.perf_counter() + seconds
        if self._under_way:
            until = min(until, self._under_way[0][1])
        time.sleep(max(until - now, 0))
        came = []
        while self._under_way and self._under_way[0][1] <= time.perf_counter():
            ticket, at = self._under_way.popleft()
            came.append(Answer(ticket, at, Outcome.RIGHT))
        return came

    def close(self) -> None:
        pass


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(1000, 20, np.random.default_rng(0))
    gaps = np.diff(times)
    assert times.size == pytest.approx(20000, rel=0.05)
    assert gaps.min() >= 0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as in an exponential distribution
    np.testing.assert_array_equal(times, arrivals(1000, 20, np.random.default_rng(0)))


@pytest.mark.parametrize(("shape", "median", "longest"), [("short-skewed", 64, 512), ("uniform", 258, 512)])
def test_lengths_are_spread_as_named(shape: str, median: int, longest: int) -> None:
    lengths = Traffic(shape, longest).lengths(5000, np.random.default_rng(0))
    assert np.median(lengths) == pytest.approx(median, rel=0.05)
    assert lengths.min() >= SHORTEST
    assert lengths.max() <= longest
    assert (Traffic("fixed", 7).lengths(3, np.random.default_rng(0)) == 7).all()


def test_a_request_is_padded_to_its_longest_text() -> None:
    request = Traffic(texts=5).requests(1)[0]
    tensors = request.tensors()
    assert tensors["input_ids"].shape == (5, int(request.seq_lens.max()))
    for row, (length,) in zip(tensors["input_ids"], tensors["seq_lens"], strict=True):
        assert row[:length].all()
        assert not row[length:].any()
    assert list(Traffic(texts=1).requests(1)[0].tensors()) == ["input_ids"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that goes on only while somebody sleeps: other work on the machine delays nothing."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    return time.perf_counter


def test_latency_counts_from_the_moment_a_request_was_meant_to_leave(clock: Callable[[], float]) -> None:
    # With one connection and 20 ms per answer, 50 of 100 requests per second get through.
    notes = perform(DelayedClient(0.02, most=1), Order(clock(), 100, 0.5, 5.0, 0), pool_size=3)
    assert (notes.outcome == Outcome.RIGHT).all()
    waited = notes.answered - notes.meant
    assert waited.max() > 0.2
    np.testing.assert_allclose(notes.answered - notes.sent, 0.02)
    assert (notes.sent >= notes.meant).all()


def test_what_never_comes_is_lost_and_nothing_waits_for_ever(clock: Callable[[], float]) -> None:
    began = clock()
    notes = perform(DelayedClient(0.001, most=50, never=[2]), Order(began, 100, 0.3, 0.2, 0), pool_size=3)
    assert clock() - began == pytest.approx(0.5)
    assert list(np.flatnonzero(notes.outcome == Outcome.LOST)) == [2]
    assert math.isnan(notes.answered[2])


def test_a_killed_worker_ends_the_run_with_the_reason() -> None:
    target = Target("grpc", "127.0.0.1:1", "nobody", "listens", connections=1)
    with Fleet(target, Traffic(longest=8).requests(2), workers=1, expected=None) as fleet:
        (worker,) = active_children()
        worker.kill()
        with pytest.raises(RuntimeError, match=r"has ended, with status -9"):
            fleet.step(1.0, 60.0)


def test_the_summary_counts_what_was_meant_and_what_came_in_the_window() -> None:
    pool = [Request(np.ones((1, 4), np.int32), np.array([[4]], np.int32))] * 2
    meant, answered = np.array([0.5, 1.1, 1.5, 1.9]), np.array([1.2, 1.3, 1.6, np.nan])
    outcome = np.array([Outcome.RIGHT, Outcome.RIGHT, Outcome.RIGHT, Outcome.LOST])
    actual = summary(Notes(meant, meant, answered, outcome, np.array([0, 1, 0, 1])), pool, (1.0, 2.0))
    assert (actual["requests"], actual["right"], actual["lost"]) == (4, 3, 1)
    assert (actual["meant_per_s"], actual["answered_per_s"], actual["tokens_per_s"]) == (3, 3, 12)
    assert actual["latency_ms"]["p50"] == pytest.approx(200)
    assert actual["latency_ms"]["p99"] is None  # one of three never came


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(np.array([1.0, 2.0, 3.0, 10.0]))["p50"] == 3.0
    assert set(percentiles(np.array([])).values()) == {None}


def test_crossed_answers_are_told_from_right_ones() -> None:
    one, other = np.array([[1.0, -0.5]]), np.array([[0.2, 0.9]])
    assert judge(one + 0.01, one) is Outcome.RIGHT
    assert judge(other, one) is Outcome.WRONG
    assert judge(one[:, :1], one) is Outcome.WRONG
    with pytest.raises(ValueError, match="requests 1 and 2 have the same answer"):
        check_apart([one, other, other])


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ([[0.2, 0.9], [0.3, 0.3]], "the answer to request 1"),
        ([[1.0, -0.5]], r"shape \[1, 2\], alone \[2, 2\]"),
        ([[1.0, np.nan], [0.0, 1.0]], "1 of 4 values are not finite"),
        ([[1.0, -0.5], [0.5, 0.7]], r"texts \[1\] of 2 are off by up to 0.500 of the largest value, 2 values in all"),
    ],
)
def test_what_is_wrong_with_an_answer_is_told(
    answer: list[list[float]], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    references = [np.array([[1.0, -0.5], [0.0, 1.0]]), np.array([[0.2, 0.9], [0.3, 0.3]])]
    assert judge_request(references[0], references, 0) is Outcome.RIGHT
    assert not caplog.records
    assert judge_request(np.array(answer), references, 0) is Outcome.WRONG
    assert re.search(f"request 0: {what}", caplog.text)


@pytest.mark.parametrize("start", [100.0, 3000.0])
def test_the_limit_is_found_from_below_and_from_above(start: float) -> None:
    offered: list[float] = []

    def offer(rate: float) -> dict[str, Any]:
        offered.append(rate)
        return step(rate, p99=10.0 if rate <= 1000 else 100.0)

    actual = find_limit(offer, 50.0, start)
    assert actual is not None
    assert 900 < actual["offered_per_s"] <= 1000
    assert len(offered) < 16


@pytest.mark.parametrize("fault", [{"answered": 0.0}, {"p99": None}, {"wrong": 1}, {"refused": 1}, {"lost": 1}])
def test_a_step_with_a_fault_is_no_limit(fault: dict[str, Any]) -> None:
    assert find_limit(lambda rate: step(rate, **fault), 50.0, 100.0) is None


def test_the_sum_of_a_soak() -> None:
    records = [
        step(10, p99=float(at), host_mib=100 + at, gpu_mib=None, elapsed_s=36.0 * at, lost=1) for at in range(10)
    ]
    actual = total(records)
    assert (actual["requests"], actual["lost"], actual["worst_p99_ms"]) == (100, 10, 9.0)
    assert actual["host_mib"] == {"first": 103, "last": 109, "most": 109, "per_hour": pytest.approx(100)}
    assert "gpu_mib" not in actual


def test_memory_of_a_process_and_those_below_it() -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        assert {os.getpid(), child.pid} <= set(family(os.getpid()))
        assert host_mib(os.getpid()) > host_mib(child.pid) > 0
    finally:
        child.kill()
        child.wait()
    with pytest.raises(ProcessLookupError, match="has ended"):
        host_mib(child.pid)


def test_the_report(tmp_path: Path) -> None:
    shared = {"mode": "contest", "p99_limit_ms": 50, "texts": 8, "shape": "short-skewed", "gpu": "a GPU"}
    lines = [
        {**shared, "label": label, **step(rate, p99)}
        for label, rate, p99 in [
            ("packed", 90, 9.0),
            ("packed", 100, 40.0),
            ("packed", 120, 80.0),
            ("padded", 40, 30.0),
            ("native", 150, 45.0),
        ]
    ]
    lines.insert(0, {**shared, "label": "packed", **step(500, 9.0), "commit": "an earlier one"})
    lines.append({"mode": "session rate", "label": "session", "tokens_per_s": 20000})
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    servers = report.read(file)
    text = report.table(servers, report.session_rate(file))
    assert "| packed | 100 | 100 | 10,000 | 1.0 | 40.0 |" in text
    assert "packed over the better padded server: 2.50" in text
    assert "native over the better padded server: 3.75" in text
    assert "native over a Session without a server (20,000 tokens/s): 0.75" in text
    pytest.importorskip("matplotlib")
    load_plot.plot(servers, tmp_path / "load.svg")
    assert "million tokens answered per second" in (tmp_path / "load.svg").read_text("utf-8")


def test_batches_of_a_session_hold_every_text_in_order() -> None:
    requests = Traffic(longest=64, texts=3).requests(40)
    found = batches(requests, max_tokens=100, max_sequences=5)
    texts = [ids[:n] for request in requests for ids, n in zip(request.ids, request.seq_lens[:, 0], strict=True)]
    assert [list(ids) for batch in found for ids in batch] == [list(ids) for ids in texts]
    assert all(sum(map(len, batch)) <= 100 and len(batch) <= 5 for batch in found)
    assert max(map(len, found)) == 5


def test_texts_are_as_long_as_the_ids_of_the_same_traffic() -> None:
    traffic = Traffic(longest=128, texts=4)
    pool = TextTraffic(traffic, DEMO_DATA / "tokenizer.json").requests(20, seed=3)
    assert [request.texts for request in pool] == [
        request.texts for request in TextTraffic(traffic, DEMO_DATA / "tokenizer.json").requests(20, seed=3)
    ]
    assert {len(request.texts) for request in pool} == {4}
    lengths = np.concatenate([request.seq_lens[:, 0] for request in pool])
    assert lengths.max() <= traffic.longest
    assert lengths.mean() == pytest.approx(traffic.lengths(1000, np.random.default_rng(3)).mean(), rel=0.3)
    words = [word for request in pool for text in request.texts for word in text.split()]
    assert len(set(words)) > 20
    assert max(words.count(word) for word in set(words)) > 10  # words follow Zipf's law


def test_vectors_are_read_out_of_openais_json() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = [{"index": at, "embedding": b64encode(row.tobytes()).decode()} for at, row in enumerate(vectors)]
    assert openai_client.values(json.dumps({"data": data}).encode()).tolist() == vectors.tolist()
    request = Request(np.zeros((2, 1), np.int32), np.ones((2, 1), np.int32), ("a", "é"))
    sent = json.loads(openai_client.body(Target("openai", "a:1", "m", "o", 1), request))
    assert sent == {"model": "m", "input": ["a", "é"], "encoding_format": "base64"}
