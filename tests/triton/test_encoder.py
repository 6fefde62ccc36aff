# SPDX-License-Identifier: Apache-2.0
"""Many requests at once to the served encoder: every caller gets its own answer or its own error."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .bad_requests import assert_bad_requests_fail_alone
from .calls import PROTOCOLS, call, call_all, rows
from .served_kinds import OUTPUTS, TOLERANCE, assert_right, random_sequences

pytestmark = [pytest.mark.needs_triton, pytest.mark.parametrize("protocol", PROTOCOLS)]


def test_every_caller_gets_its_answer(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [[sequence] for sequence in random_sequences(0, 300)]
    answers = call_all(server, protocol, "bert", [rows(sequences) for sequences in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, session)


def test_requests_of_several_sequences(server: TritonServer, session: Session, protocol: str) -> None:
    pool = random_sequences(1, 120)
    requests = [pool[at : at + 1 + at % 4] for at in range(0, 116, 4)]
    requests += [[sequence, sequence[::-1]] for sequence in pool[:20]]  # equal lengths: no seq_lens
    answers = call_all(server, protocol, "bert", [rows(sequences) for sequences in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, session)


def test_token_types_reach_the_model(server: TritonServer, session: Session, protocol: str) -> None:
    ids, types = [7, 8, 9, 10], [0, 0, 1, 1]
    tensors = {**rows([ids]), "token_type_ids": np.array([types], dtype=np.int32)}
    answer = call(server, protocol, "bert", tensors, OUTPUTS)
    assert_right(answer, [ids], session, [types])
    without = session.run([ids])["pooler_output"][0]
    assert np.abs(answer["pooler_output"][0] - without).max() > 100 * TOLERANCE


def test_bad_requests_fail_alone(server: TritonServer, session: Session, protocol: str) -> None:
    sequences = random_sequences(2, 200)
    answers = assert_bad_requests_fail_alone(
        server, protocol, "bert", 512, lambda count: [rows([each]) for each in sequences[:count]], OUTPUTS
    )
    for answer, sequence in zip(answers, sequences, strict=False):
        assert_right(answer, [sequence], session)
