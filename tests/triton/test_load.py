# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server: every answer comes, is right, and is not confused with another."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import page
from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs_triton
COMMANDS = re.findall(r"^python (-m benchmarks\.load \w+ --.*)$", page("load").read_text("utf-8"), re.M)
SHORT = {"steps": "--rates 20", "limit": "--p99-ms 1000 --start 20", "soak": "--rate 20 --minutes 0.02"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
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


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page(server: TritonServer, tmp_path: Path, command: str) -> None:
    for port, service in (("8000", "http"), ("8001", "grpc")):
        command = command.replace(f"127.0.0.1:{port}", server.url(service))
    command = command.replace('"$(pidof tritonserver)"', str(server.process.pid))
    file = tmp_path / "load.jsonl"
    mode = command.split()[2]
    own = f"{SHORT[mode]} --seconds 0.3 --warm-up 0.1 --pool 10 --longest 64 --workers 1 --connections 2 --json {file}"
    done = subprocess.run(
        [sys.executable, *shlex.split(command), *own.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert all(record["mode"] == mode for record in records)
    assert sum(record["right"] for record in records) > 0
    assert not any(record["wrong"] or record["refused"] for record in records)
