# SPDX-License-Identifier: Apache-2.0
"""HTTP bodies that are no requests get an error each, while other requests are answered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .calls import call_all, rows
from .served_kinds import OUTPUTS, assert_right, random_sequences

pytestmark = pytest.mark.needs_triton


def body(**changes: Any) -> bytes:
    ids = {"name": "input_ids", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 7], **changes}
    return json.dumps({"inputs": [ids]}).encode()


BODIES = {
    "nothing": b"",
    "no JSON": b"\xff\x00 not JSON",
    "half a request": body()[:-10],
    "no inputs": b"{}",
    "less data than its shape": body(shape=[1, 4]),
    "words for numbers": body(data=["a", "b", "c"]),
    "a negative size": body(shape=[1, -3]),
    "an unknown type": body(datatype="INT33"),
}


def test_bodies_that_are_no_requests(server: TritonServer, session: Session) -> None:
    url = f"http://{server.url('http')}/v2/models/bert/infer"
    good = [[sequence] for sequence in random_sequences(11, 100)]
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(call_all, server, "http", "bert", [rows(row) for row in good], OUTPUTS)
        for kind, data in BODIES.items():
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url, data, method="POST"), timeout=10)
            assert json.load(refused.value)["error"], kind
    for answer, sequences in zip(answers.result(), good, strict=True):
        assert_right(answer, sequences, session)
    with urllib.request.urlopen(urllib.request.Request(url, body(), method="POST"), timeout=10) as reply:
        assert json.load(reply)["outputs"]
