# SPDX-License-Identifier: Apache-2.0
"""The encoder's own numbers on the server's metrics page."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from tests.support.triton_server import TritonServer

from .calls import call_all, rows, texts
from .processes import wait_until
from .served_kinds import OUTPUTS, random_sequences

pytestmark = pytest.mark.needs_triton


SERIES = re.compile(
    r'^padfree_(\w+)\{instance="strict_0_\d",model="strict",pid="\d+",version="1"\} (\S+)$', re.MULTILINE
)
BUCKETS = re.compile(
    r'^padfree_call_seconds_bucket\{instance="(strict_0_\d)",le="([^"]+)",model="strict",.*\} (\S+)$',
    re.MULTILINE,
)


def series(server: TritonServer) -> dict[str, float]:
    """The time series of model `strict`, without their prefix, added up over its instances."""
    sums: dict[str, float] = {}
    for name, value in SERIES.findall(server.get("metrics", "metrics")):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def test_what_was_computed_is_counted(server: TritonServer) -> None:
    sequences = random_sequences(5, 50)
    # No test has called this encoder before, so the first numbers are those of its warm-up.
    wait_until(lambda: series(server)["sequences_total"] > 0, "the warm-up on the page")
    before = series(server)

    def growth(name: str) -> float:
        return series(server)[name] - before[name]

    requests = [rows([row]) for row in sequences] + [{"input_ids": np.array([[-1]], np.int32)}]
    call_all(server, "grpc", "strict", requests, OUTPUTS)
    wait_until(lambda: growth("sequences_total") == 50, "50 sequences on the page")
    wait_until(lambda: growth("refused_requests_total") == 1, "1 refused request")
    wait_until(lambda: growth("call_seconds_count") == 51, "51 requests in the histogram")
    assert growth("call_seconds_sum") > 0
    assert growth("failed_requests_total") == 0
    tokens = sum(map(len, sequences))
    assert growth("tokens_total") == tokens
    assert 1 <= growth("runs_total") <= 50
    assert tokens <= growth("padded_tokens_total") <= 50 * 60


def test_the_histogram_of_calls_is_one(server: TritonServer) -> None:
    call_all(server, "grpc", "strict", [rows([row]) for row in random_sequences(6, 50)], OUTPUTS)

    def consistent() -> bool:
        page = server.get("metrics", "metrics")
        found: dict[str, dict[float, float]] = {}
        for labels, bound, value in BUCKETS.findall(page):
            found.setdefault(labels, {})[float(bound)] = float(value)
        counts = [buckets[float("inf")] for buckets in found.values()]
        for buckets in found.values():
            assert len(buckets) == 12
            values = [value for _, value in sorted(buckets.items())]
            assert values == sorted(values)
        return bool(counts) and sum(counts) == series(server)["call_seconds_count"] >= 50

    wait_until(consistent, "as many in the last bucket as in all")


def test_texts_that_were_cut_are_counted(server: TritonServer) -> None:
    def count(name: str) -> float:
        page = server.get("metrics", "metrics")
        return sum(map(float, re.findall(rf'^padfree_{name}\{{.*model="strict_tokenizer".*\}} (\S+)$', page, re.M)))

    names = ("truncated_texts_total", "refused_requests_total")
    truncated, refused = map(count, names)
    long = texts("one " * 40)
    requests = [{"text": long, "truncate": np.array([[flag]])} for flag in (True, True, False)]
    call_all(server, "http", "strict_text", requests, OUTPUTS)
    wait_until(lambda: [*map(count, names)] == [truncated + 2, refused + 1], "two texts cut, and one refused")


def test_gauges_speak_of_the_newest_second(server: TritonServer) -> None:
    gauges = ("batch_sequences", "batch_tokens", "packing_ratio")
    wait_until(lambda: all(series(server).get(name) == 0 for name in gauges), "nothing runs")
    stop = time.monotonic() + 30
    while not all(series(server)[name] >= 1 for name in gauges):
        assert time.monotonic() < stop
        call_all(server, "grpc", "strict", [rows([row]) for row in random_sequences(5, 50)], OUTPUTS)
    wait_until(lambda: all(series(server)[name] == 0 for name in gauges), "the gauges to fall")
