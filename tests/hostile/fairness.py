# SPDX-License-Identifier: Apache-2.0
"""How long one text waits while others send many, and what share of the tokens that a server computes is answered.

    python -m tests.hostile.fairness minilm.plan
    python -m tests.hostile.fairness packed.onnx --seconds 10

Serves the model at a free port of 127.0.0.1. One caller sends a text at a time: alone, beside one and beside four
callers who send `--texts` texts at once, again and again. Prints JSON lines; the exit code is 1 where the 99th
percentile is beyond three runs' time and `--slack-ms`, or less than 90 % of the computed tokens are answered.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.http_requests import PATIENCE_S, get
from tests.support.served_models import Server

TEXT = "the quick brown fox jumps over the lazy dog while it rains on all the fields around the town"
GOODPUT = 0.9
RUNS = 3
CONTEXTS = 2
"""Runs in progress at once share the device: each takes this many times as long as it would alone."""


class Caller(threading.Thread):
    """Sends texts again and again until a given time; records latencies and the number of tokens answered."""

    def __init__(self, server: Server, texts: int, until: float) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.tokens = self.refused = 0
        self._server, self._until = server, until
        self._body = json.dumps({"input": [TEXT] * texts, "encoding_format": "base64"})
        self.start()

    def run(self) -> None:
        connection = HTTPConnection(*self._server.address, timeout=PATIENCE_S)
        while time.monotonic() < self._until:
            start = time.monotonic()
            connection.request("POST", "/v1/embeddings", self._body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200:
                self.seconds.append(time.monotonic() - start)
                self.tokens += json.loads(content)["usage"]["total_tokens"]
            else:
                self.refused += 1
                time.sleep(0.05)
        connection.close()


def metric(server: Server, name: str) -> float:
    """The value of a metric on the /metrics page."""
    found = re.search(rf"^{name} (\S+)$", get(server, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0.0


def measure(server: Server, bulk: int, texts: int, seconds: float) -> dict[str, Any]:
    """Measures one case."""
    before = metric(server, "padfree_tokens_total")
    until = time.monotonic() + seconds
    callers = [Caller(server, texts, until) for _ in range(bulk)]
    one = Caller(server, 1, until)
    time.sleep(seconds / 2)
    rate = metric(server, "padfree_tokens_a_second")
    for caller in (*callers, one):
        caller.join()
    computed = metric(server, "padfree_tokens_total") - before
    answered = sum(caller.tokens for caller in (*callers, one))
    run_ms = 1e3 * CONTEXTS * get(server, "/info")[1]["max_batch_tokens"] / rate if rate else 0.0
    p50, p99 = (round(1e3 * float(np.percentile(one.seconds, share)), 2) for share in (50, 99))
    return {
        "bulk_callers": bulk,
        "texts": texts,
        "one_text_ms": {"p50": p50, "p99": p99, "count": len(one.seconds), "refused": one.refused},
        "run_ms": round(run_ms, 2),
        "tokens_a_second": round(rate),
        "answered_of_computed": round(answered / computed, 4) if computed else 0.0,
        "refused": sum(caller.refused for caller in callers),
    }


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fairness")
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slack-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    wrong = False
    with Server(arguments.model) as server:
        for bulk in (0, 1, 4):
            found = measure(server, bulk, arguments.texts, arguments.seconds)
            sys.stdout.write(json.dumps(found) + "\n")
            slow = found["one_text_ms"]["p99"] > RUNS * found["run_ms"] + arguments.slack_ms
            wrong |= bool(bulk) and (slow or found["answered_of_computed"] < GOODPUT)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
