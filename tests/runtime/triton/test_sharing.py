# SPDX-License-Identifier: Apache-2.0
"""How the Python backend's encoder answers requests of clients who share the model, without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.runtime import Session
from padfree.runtime.batching import Budget
from padfree.runtime.request import RaggedBatch
from padfree.runtime.triton import sharing
from padfree.runtime.triton.answers import CANCELLED, Failure, Reply, TritonRequest
from padfree.runtime.triton.sharing import Caller, Sharing

from tests.support.exports import save_rewritten

Array = npt.NDArray[Any]
ModelWriter = Callable[..., Path]
WAIT_S = 20.0
RUN_TOKENS = 8


class GatedSession(Session):
    """A session whose runs wait until the gate is open; records the first id of every sequence in the order of runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, contexts=2)
        self.gate = threading.Event()
        self.gate.set()
        self.first_ids: list[int] = []

    def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[Any]]:
        self.gate.wait(WAIT_S)
        starts = np.cumsum(ragged.seq_lens) - ragged.seq_lens
        self.first_ids += ragged.tokens["input_ids"][starts].tolist()
        return super().run_ragged(ragged)


class SharingClient:
    """Sends requests to a Sharing, and keeps their answers in the order in which they come."""

    def __init__(self, session: GatedSession, most_waiting: int = 10_000) -> None:
        self.answers: list[tuple[str, Reply]] = []
        self.counted: list[Reply] = []
        self.runs: list[int] = []
        self._all = threading.Semaphore(0)
        self._count = 0
        self.sharing = Sharing(
            session,
            Budget(max_tokens=RUN_TOKENS),
            most_waiting,
            lambda batch: self.runs.append(int(batch.seq_lens.sum())),
            lambda answer, _: self.counted.append(answer),
        )
        session.first_ids.clear()

    def ask(self, name: str, ids: Sequence[int], client: Any = None, gone: Callable[[], bool] = bool) -> None:
        """Sends a sequence, whose answer is kept under `name`."""
        self._count += 1
        grid = np.array([ids], np.int32)
        self.sharing.submit(
            TritonRequest({"input_ids": grid}, ["hidden"]), Caller(client, lambda one: self._take(name, one), gone)
        )
        grid[:] = 0  # as the server does, which reuses its memory

    def _take(self, name: str, answer: Reply) -> None:
        self.answers.append((name, answer))
        self._all.release()

    def wait(self) -> dict[str, Reply]:
        """All answers by name."""
        for _ in range(self._count):
            assert self._all.acquire(timeout=WAIT_S)
        self._count = 0
        return dict(self.answers)


@pytest.fixture
def session(packed_model: ModelWriter) -> Iterator[GatedSession]:
    with GatedSession(packed_model()) as opened:
        yield opened
        opened.gate.set()


@pytest.fixture
def one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads, the one that takes a run first may be the second to note it."""
    monkeypatch.setattr(sharing, "RUNS", 1)


def hidden_rows(answer: Reply) -> list[int]:
    assert isinstance(answer, Mapping), answer
    ids: list[int] = answer["hidden"][0, :, 0].tolist()
    return ids


def test_every_request_has_its_own_answer(session: GatedSession) -> None:
    asked = SharingClient(session)
    for at in range(1, 40):
        asked.ask(str(at), [at] * (1 + at % 5), client=at % 3)
    answers = asked.wait()
    asked.sharing.close()
    assert all(hidden_rows(answers[str(at)]) == [at] * (1 + at % 5) for at in range(1, 40))
    assert len(asked.counted) == 39
    assert max(asked.runs) <= RUN_TOKENS


@pytest.mark.parametrize("family", ["layoutlm_torchscript", "bert_embeddings_ts17"], ids=["boxes", "embeddings"])
def test_the_speed_is_known_of_models_with_several_numbers_per_token(family: str, tmp_path: Path) -> None:
    with Session(save_rewritten(family, tmp_path, "packed")) as session:
        assert any(item.width is not None for item in session.metadata.token_inputs())
        assert sharing.measure_alike(session, Budget(max_tokens=512)).tokens_a_second


def test_the_speed_is_known_of_models_that_refuse_id_0(
    packed_model: ModelWriter, packed_metadata: dict[str, Any]
) -> None:
    coverage = {**packed_metadata["coverage"], "excluded_ids": {"input_ids": [0]}}
    with Session(packed_model(coverage=coverage)) as session:
        assert sharing.measure_alike(session, Budget(max_tokens=512)).tokens_a_second


@pytest.mark.usefixtures("one_run_at_a_time")
def test_a_request_beside_a_flood_is_in_one_of_the_next_runs(session: GatedSession) -> None:
    asked = SharingClient(session)
    session.gate.clear()
    for at in range(40):
        asked.ask(f"flood {at}", [7, 7, 7, 7], client="flood")
    asked.ask("one", [9], client="one")
    session.gate.set()
    asked.wait()
    asked.sharing.close()
    under_way = RUN_TOKENS // 4  # one run waits at the gate already
    assert session.first_ids.index(9) <= under_way + 1


@pytest.mark.usefixtures("one_run_at_a_time")
def test_without_names_all_are_one_client_in_the_order_of_arrival(session: GatedSession) -> None:
    asked = SharingClient(session)
    session.gate.clear()
    for at in range(40):
        asked.ask(f"flood {at}", [7, 7, 7, 7])
    asked.ask("one", [9])
    session.gate.set()
    asked.wait()
    asked.sharing.close()
    assert session.first_ids.index(9) == 40


def test_whoever_has_gone_is_not_computed_for(session: GatedSession) -> None:
    asked = SharingClient(session)
    session.gate.clear()
    for at in range(10):
        asked.ask(f"flood {at}", [7, 7, 7, 7])
    asked.ask("gone", [9], gone=lambda: True)
    for _ in range(1000):
        if asked.answers:
            break
        threading.Event().wait(0.01)
    session.gate.set()
    answers = asked.wait()
    asked.sharing.close()
    assert answers["gone"] is CANCELLED
    assert 9 not in session.first_ids
    assert hidden_rows(answers["flood 9"]) == [7, 7, 7, 7]


def test_nobody_is_asked_about_once_it_has_its_answer() -> None:
    asked: list[None] = []
    caller = Caller(None, lambda _: None, lambda: asked.append(None) is None)
    assert caller.has_gone()
    caller.send({})
    assert not caller.has_gone()
    assert len(asked) == 1


def test_too_much_is_refused_at_once_as_something_for_later(session: GatedSession) -> None:
    asked = SharingClient(session, most_waiting=30)
    session.gate.clear()
    for at in range(20):
        asked.ask(str(at), [7, 7, 7, 7])
    busy = [answer for _, answer in asked.answers]
    assert busy
    assert all(isinstance(answer, Failure) and answer.busy and not answer.is_refusal for answer in busy)
    session.gate.set()
    asked.wait()
    asked.sharing.close()


def test_requests_that_do_not_fit_are_refused_alone(session: GatedSession) -> None:
    asked = SharingClient(session)
    asked.ask("good", [1, 2])
    asked.ask("bad", [-5])
    answers = asked.wait()
    asked.sharing.close()
    assert hidden_rows(answers["good"]) == [1, 2]
    bad = answers["bad"]
    assert isinstance(bad, Failure)
    assert bad.is_refusal
    assert "-5" in bad.message
