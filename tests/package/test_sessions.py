# SPDX-License-Identifier: Apache-2.0
"""Sessions of onnxruntime in tests leave the cores to the other processes of pytest."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from padfree.builder.demo.demo import DEMO_DATA

from tests.support.sessions import SPINNING

MODEL = str(DEMO_DATA / "bert_tiny.onnx")


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), (0, 0), (2, 2)])
def test_no_session_spins(asked: int | None, threads: int) -> None:
    options = None if asked is None else ort.SessionOptions()
    if options is not None and asked is not None:
        options.intra_op_num_threads = asked
    session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    assert session.get_session_options().intra_op_num_threads == threads
    assert session.get_session_options().get_session_config_entry(SPINNING) == "0"


def test_who_asks_for_it_gets_it() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(SPINNING, "1")
    session = ort.InferenceSession(MODEL, sess_options=options)
    assert session.get_session_options().get_session_config_entry(SPINNING) == "1"
