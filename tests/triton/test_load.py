# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server: every answer comes, is right, and is told from another's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from calls import PROTOCOLS
from triton_server import TritonServer

sys.path.append(str(Path(__file__).resolve().parents[2]))  # benchmarks.load is a package, not a script

pytestmark = [pytest.mark.needs_triton, pytest.mark.parametrize("protocol", PROTOCOLS)]


@pytest.mark.parametrize("crossed", [False, True])
def test_answers_under_load(server: TritonServer, protocol: str, crossed: bool) -> None:
    from benchmarks.load.client import Target
    from benchmarks.load.fleet import Fleet
    from benchmarks.load.reference import references
    from benchmarks.load.traffic import Traffic

    target = Target(protocol, server.url(protocol), "bert", "pooler_output", connections=4)
    requests = Traffic(longest=64, texts=2).requests(20)
    expected = references(target, requests)
    if crossed:
        expected = expected[1:] + expected[:1]
    with Fleet(target, requests, workers=2, expected=expected) as fleet:
        found = fleet.step(60, 1.5, warm_up_s=0.5)
    assert found["requests"] > 60
    assert found["wrong" if crossed else "right"] == found["requests"]
    if not crossed:
        assert found["latency_ms"]["p99"] >= found["latency_ms"]["p50"] > 0
        assert found["tokens_per_s"] > found["texts_per_s"] > found["answered_per_s"]
