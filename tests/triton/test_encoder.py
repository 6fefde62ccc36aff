# SPDX-License-Identifier: Apache-2.0
"""Many requests at once to the served encoder: every caller gets its own answer, or its own error."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Tensors, call, call_all, rows
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


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"input_ids": np.zeros((1, 0), np.int32)}, r"'input_ids' has shape \[1, 0\], allowed: "),
    "over-long": ({"input_ids": np.ones((1, 600), np.int32)}, "sequence 0 has 600 tokens, the model has 512 positions"),
    "unknown id": ({"input_ids": np.array([[5, 930]], np.int32)}, r"'input_ids' value 930 .*allowed 0\.\.929"),
    "negative id": ({"input_ids": np.array([[-1]], np.int32)}, r"'input_ids' value -1 .*allowed 0\.\.929"),
    "other width": (
        {"input_ids": np.ones((1, 4), np.int32), "token_type_ids": np.ones((1, 3), np.int32)},
        r"'token_type_ids' has shape \[1, 3\], 'input_ids' has \[1, 4\]",
    ),
    "longer than its row": (
        {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [4]], np.int32)},
        r"'seq_lens' holds 4, allowed: 1\.\.3",
    ),
    "no tokens": (
        {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [0]], np.int32)},
        r"'seq_lens' holds 0, allowed: 1\.\.3",
    ),
    # The server itself refuses what the configuration rules out.
    "wrong type": ({"input_ids": np.ones((1, 3), np.int64)}, "data-type is 'INT64', but .* expects 'INT32'"),
    "wrong rank": ({"input_ids": np.ones((1, 3, 2), np.int32)}, "unexpected shape for input 'input_ids'"),
    "no ids": ({"token_type_ids": np.ones((1, 3), np.int32)}, "input"),
}


def test_bad_requests_fail_alone(server: TritonServer, session: Session, protocol: str) -> None:
    good = [[sequence] for sequence in random_sequences(2, 10 * len(BAD))]
    requests: list[Tensors] = []
    for at, (tensors, _) in enumerate(BAD.values()):
        requests += [rows(sequences) for sequences in good[10 * at : 10 * at + 10]]
        requests.append(tensors)
    answers = call_all(server, protocol, "bert", requests, OUTPUTS)
    for answer, (kind, (_, message)) in zip(answers[10::11], BAD.items(), strict=True):
        assert isinstance(answer, Exception), kind
        assert re.search(message, str(answer)), str(answer)
    del answers[10::11]
    for answer, sequences in zip(answers, good, strict=True):
        assert_right(answer, sequences, session)
