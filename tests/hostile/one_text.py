# SPDX-License-Identifier: Apache-2.0
"""The caller who matters most: one text at a time, from a process of its own with its own clock."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tests.support.served_models import Array, expected_rows, unit

TEXT = "the cat sat on the mat"
PAUSE_S, AGAIN_S = 0.02, 0.1
TOLERANCE = 1e-5
PATIENCE_S = 60.0
ENDED = "has ended"
"""Part of the message to callers when the process with the model has been killed."""


class OneText:
    """Asks until `end` is called.

    Args:
        address: the server's.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_ask, args=(address, theirs), daemon=True)
        self._process.start()

    def end(self) -> tuple[Counter[str], list[float], list[str]]:
        """Outcomes, latencies in seconds, and what was wrong with the answers."""
        self._ours.send(None)
        if not self._ours.poll(2 * PATIENCE_S):
            self._process.kill()
            return Counter(), [], ["one text: the caller did not come back"]
        found: tuple[Counter[str], list[float], list[str]] = self._ours.recv()
        self._process.join()
        return found


def _ask(address: tuple[str, int], pipe: Connection) -> None:
    outcomes: Counter[str] = Counter()
    latencies: list[float] = []
    wrong: list[str] = []
    wanted = unit(expected_rows([TEXT]))
    connection = HTTPConnection(*address, timeout=PATIENCE_S)
    while not pipe.poll(PAUSE_S):
        start = time.monotonic()
        try:
            if connection.sock is None:
                connection.connect()
        except OSError:
            time.sleep(AGAIN_S)
            continue
        try:
            connection.request("POST", "/embed", json.dumps({"inputs": TEXT}))
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
        except TimeoutError:
            wrong.append(f"one text: no answer within {PATIENCE_S:.0f} s")
            connection.close()
            continue
        except (OSError, HTTPException):
            outcomes["one text: lost"] += 1
            connection.close()
            continue
        told = "one text: told of the end" if status == 424 and ENDED.encode() in body else f"one text: {status}"
        outcomes[told] += 1
        if status == 200:
            latencies.append(time.monotonic() - start)
            wrong.extend(_difference(json.loads(body), wanted))
    pipe.send((outcomes, latencies, wrong))


def _difference(vectors: Any, wanted: Array) -> list[str]:
    same = np.shape(vectors) == wanted.shape and np.allclose(vectors, wanted, atol=TOLERANCE)
    return [] if same else ["one text: the vector is not that of the text"]
