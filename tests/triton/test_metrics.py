# SPDX-License-Identifier: Apache-2.0
"""The encoder's own numbers on the server's metrics page."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from tests.support.triton_server import TritonServer

from .calls import call_all, rows
from .processes import wait_until
from .served import OUTPUTS, random_sequences

pytestmark = pytest.mark.needs_triton


SERIES = re.compile(
    r'^padfree_(\w+)\{instance="strict_0_\d",model="strict",pid="\d+",version="1"\} (\S+)$', re.MULTILINE
)


def series(server: TritonServer) -> dict[str, float]:
    """The series of model `strict` without their prefix, added up over its instances."""
    sums: dict[str, float] = {}
    for name, value in SERIES.findall(server.get("metrics", "metrics")):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def test_what_was_computed_is_counted(server: TritonServer) -> None:
    sequences = random_sequences(5, 50)
    # No other test calls this encoder before: what there is to wait for is its warm-up.
    wait_until(lambda: series(server)["sequences_total"] > 0, "the warm-up on the page")
    before = series(server)

    def grown(name: str) -> float:
        return series(server)[name] - before[name]

    requests = [rows([row]) for row in sequences] + [{"input_ids": np.array([[-1]], np.int32)}]
    call_all(server, "grpc", "strict", requests, OUTPUTS)
    wait_until(lambda: grown("sequences_total") == 50, "50 sequences on the page")
    wait_until(lambda: grown("refused_requests_total") == 1, "1 refused request")
    tokens = sum(map(len, sequences))
    assert grown("tokens_total") == tokens
    assert 1 <= grown("runs_total") <= 50
    assert tokens <= grown("padded_tokens_total") <= 50 * 60


def test_gauges_speak_of_the_newest_second(server: TritonServer) -> None:
    gauges = ("batch_sequences", "batch_tokens", "packing_ratio")
    wait_until(lambda: all(series(server).get(name) == 0 for name in gauges), "nothing runs")
    stop = time.monotonic() + 30
    while not all(series(server)[name] >= 1 for name in gauges):
        assert time.monotonic() < stop
        call_all(server, "grpc", "strict", [rows([row]) for row in random_sequences(5, 50)], OUTPUTS)
    wait_until(lambda: all(series(server)[name] == 0 for name in gauges), "the gauges to fall")
