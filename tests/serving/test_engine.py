# SPDX-License-Identifier: Apache-2.0
"""The engine of the model's process, tested in one process: groups, answers, refusals, and their bytes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.runtime.batching import Budget
from padfree.runtime.onnx_backend import OnnxBackend
from padfree.runtime.request import RaggedBatch
from padfree.runtime.text.tasks import Choices, describe
from padfree.serving import wire
from padfree.serving.engine import Engine, Inbox
from padfree.serving.metrics import WIDTH, ProcessCounters
from padfree.serving.options import Limits

from tests.support.folders import TOKENIZER, VOCABULARY
from tests.support.served_models import write_model

PATIENCE_S = 20.0
BREAKS = 66
WAITING_TOKENS = 10


class Model:
    """Answers the sum of the ids; runs with an id 1 in them are held up, and runs with BREAKS fail."""

    budget = Budget(100, 8)

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)

    def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[Any]]:
        ids = [row.tolist() for row in ragged.rows()["input_ids"]]
        self.started.release()
        if any(1 in row for row in ids):
            assert self.gate.wait(PATIENCE_S)
        if any(BREAKS in row for row in ids):
            raise RuntimeError("the GPU does not like it")
        return {"sentence_embedding": [np.array([sum(row)], np.float16) for row in ids]}


class Bench:
    """An engine, and the frames that it sends."""

    def __init__(self, file: Path) -> None:
        metadata = OnnxBackend(file).metadata
        self.model: Any = Model(metadata)
        served = describe(file, metadata, Choices(tokenizer=TOKENIZER))
        self.row = ProcessCounters(np.zeros(WIDTH), 0)
        self.engine = Engine(self.model, served, Limits(waiting_tokens=WAITING_TOKENS), 1, self.row)
        self.sent: queue.Queue[bytes] = queue.Queue()
        self.inbox = Inbox(self.engine, served.inputs, self.sent.put)

    def ask(self, ticket: int, *sequences: list[int], seconds: float = 60.0) -> None:
        lengths = np.array([len(ids) for ids in sequences], np.int32)
        columns = [np.array([item for ids in sequences for item in ids], np.int32), np.zeros(lengths.sum(), np.int32)]
        (frame,) = wire.Frames().feed(wire.pack_infer(ticket, wire.Infer(lengths, columns, seconds)))
        self.inbox.infer(frame)

    def answer(self) -> wire.Frame:
        (frame,) = wire.Frames().feed(self.sent.get(timeout=PATIENCE_S))
        return frame


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    result = Bench(write_model(tmp_path / "model.onnx"))
    yield result
    result.model.gate.set()
    result.engine.close()


def test_groups_are_answered(bench: Bench) -> None:
    bench.ask(5, [2, 3], [4])
    frame = bench.answer()
    rows = wire.unpack_rows(frame.payload)
    assert (frame.kind, frame.ticket, rows.values.tolist(), rows.values.dtype) == (wire.ROWS, 5, [[5], [4]], np.float16)
    assert rows.run_s > 0
    assert bench.row.read("padfree_tokens_total") == 3


def test_tokens_that_texts_shared_are_not_counted_as_computed(bench: Bench) -> None:
    bench.model.tokens_saved = 2
    bench.ask(5, [2, 3], [2, 4])
    assert bench.answer().kind == wire.ROWS
    bench.ask(6, [7])
    assert bench.answer().kind == wire.ROWS
    assert bench.row.read("padfree_tokens_saved_total") == 2
    assert bench.row.read("padfree_tokens_total") == 3


def test_too_much_that_waits_is_refused_at_once(bench: Bench) -> None:
    bench.ask(1, [1])
    assert bench.model.started.acquire(timeout=PATIENCE_S)
    bench.ask(2, list(range(2, 11)))
    bench.ask(3, [2, 3])
    frame = bench.answer()
    assert (frame.kind, frame.ticket) == (wire.BUSY, 3)
    bench.model.gate.set()
    assert sorted(bench.answer().ticket for _ in range(2)) == [1, 2]


def test_what_waits_for_too_long_is_dropped(bench: Bench) -> None:
    bench.ask(1, [1])
    assert bench.model.started.acquire(timeout=PATIENCE_S)
    bench.ask(2, [2], seconds=0.02)
    assert (bench.answer().kind, bench.model.gate.is_set()) == (wire.BUSY, False)
    bench.ask(3, [2], seconds=-1.0)
    assert bench.answer().kind == wire.BUSY


def test_a_group_that_fails_fails_alone(bench: Bench) -> None:
    bench.ask(1, [1])
    assert bench.model.started.acquire(timeout=PATIENCE_S)
    bench.ask(2, [2], [BREAKS])
    bench.ask(3, [3])
    bench.model.gate.set()
    answers = {frame.ticket: frame for frame in (bench.answer() for _ in range(3))}
    assert {ticket: frame.kind for ticket, frame in answers.items()} == {1: wire.ROWS, 2: wire.FAILED, 3: wire.ROWS}
    assert b"does not like it" in bytes(answers[2].payload)


def test_ids_that_the_model_does_not_have_are_refused(bench: Bench) -> None:
    bench.ask(1, [2, VOCABULARY])
    assert bench.answer().kind == wire.REFUSED


@settings(deadline=None, max_examples=50)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 2**63), st.lists(st.integers(0, 9), min_size=1, max_size=5)), max_size=5),
    chunk=st.integers(1, 300),
)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    shapes: list[tuple[int, list[int]]], chunk: int
) -> None:
    rng = np.random.default_rng(0)
    sent = []
    for ticket, lengths in shapes:
        columns = [rng.integers(0, 99, sum(lengths), np.int32) for _ in range(2)]
        sent.append((ticket, np.array(lengths, np.int32), columns))
    stream = b"".join(
        wire.pack_infer(ticket, wire.Infer(lengths, columns, 1.5, 7, 3)) for ticket, lengths, columns in sent
    )
    frames = wire.Frames()
    found = [frame for at in range(0, len(stream), chunk) for frame in frames.feed(stream[at : at + chunk])]
    assert [frame.ticket for frame in found] == [ticket for ticket, _, _ in sent]
    for frame, (_, lengths, columns) in zip(found, sent, strict=True):
        asked = wire.unpack_infer(frame.payload, 2)
        assert (asked.seconds, asked.client, asked.shares, asked.seq_lens.tolist()) == (1.5, 7, 3, lengths.tolist())
        assert [column.tolist() for column in asked.columns] == [column.tolist() for column in columns]


def test_the_page_adds_up_the_rows_of_all_processes() -> None:
    memory = np.zeros(2 * WIDTH)
    for at in range(2):
        row = ProcessCounters(memory, at)
        row.add("te_request_count", method="single")
        row.add("te_request_failure", 2, err="backend")
        row.observe("te_request_input_length", [16, 17, 9999])
    lines = ProcessCounters(memory, 0).page().splitlines()
    assert 'te_request_count{method="single"} 2' in lines
    assert 'te_request_failure{err="backend"} 4' in lines
    assert 'te_request_input_length_bucket{le="16"} 2' in lines
    assert 'te_request_input_length_bucket{le="8192"} 4' in lines
    assert 'te_request_input_length_bucket{le="+Inf"} 6' in lines
    assert f"te_request_input_length_sum {2 * (16 + 17 + 9999)}" in lines
    assert sum(ProcessCounters(memory, 0).failures().values()) == 4
