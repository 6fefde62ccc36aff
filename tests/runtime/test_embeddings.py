# SPDX-License-Identifier: Apache-2.0
"""Models that take embeddings [B, S, N] instead of ids: packed, the embeddings are float32 [T, N]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.engine.profile import ProfileOptions, choose_profile, shape_ranges
from padfree.builder.errors import BuildError
from padfree.builder.triton.serving import ServingOptions, choose
from padfree.onnx_tools import RewriteError, rewrite
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, FirstCome

from tests.support.exports import inputs_of, load, save_rewritten, sequences, truth

NAME, INPUT, OUTPUTS, LENGTHS = (
    "bert_embeddings_ts17",
    "inputs_embeds",
    ("last_hidden_state", "pooler_output"),
    (5, 1, 9),
)
WIDTH = 16


@pytest.fixture(scope="module", params=["packed", "padded"])
def session(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(save_rewritten(NAME, tmp_path_factory.mktemp(request.param), request.param)) as opened:
        yield opened


@pytest.fixture(scope="module")
def given() -> list[np.ndarray]:
    return [item[INPUT] for item in sequences(inputs_of(NAME), LENGTHS)]


@pytest.fixture(scope="module")
def wanted(given: list[np.ndarray]) -> list[list[np.ndarray]]:
    rows = [{INPUT: row, "attention_mask": np.ones(len(row))} for row in given]
    return truth(load(NAME), rows, list(OUTPUTS))


def assert_close(actual: dict[str, list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for index, name in enumerate(OUTPUTS):
        for one, two in zip(actual[name], wanted, strict=True):
            np.testing.assert_allclose(one, two[index][0], atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_a_sequence(
    session: Session, given: list[np.ndarray], wanted: list[list[np.ndarray]], dtype: type
) -> None:
    rows = [row.astype(dtype) for row in given]
    assert_close(session.run({INPUT: rows}), wanted)
    assert_close(session.run(rows), wanted)
    assert_close(session.run([row.tolist() for row in rows]), wanted)


def test_packed_tokens(session: Session, given: list[np.ndarray], wanted: list[list[np.ndarray]]) -> None:
    if session.metadata.interface == "packed":
        actual = session.run_packed(np.concatenate(given), list(LENGTHS))
        rows = np.split(actual[OUTPUTS[0]], np.cumsum(LENGTHS)[:-1])
        assert_close({OUTPUTS[0]: rows, OUTPUTS[1]: list(actual[OUTPUTS[1]])}, wanted)
        with pytest.raises(SessionError, match=r"has type int32, allowed: floats"):
            session.run_packed(np.zeros((3, WIDTH), np.int32), [3])
        with pytest.raises(SessionError, match=rf"has shape \[3, 4\], allowed: \[tokens, {WIDTH}\]"):
            session.run_packed(np.zeros((3, 4), np.float32), [3])


def test_requests_that_wait_run_together(
    session: Session, given: list[np.ndarray], wanted: list[list[np.ndarray]]
) -> None:
    with Batcher(session, FirstCome(session.budget)) as batcher:
        answers = [item.result(timeout=60) for item in [batcher.submit({INPUT: row}) for row in given]]
    assert_close({name: [answer[name] for answer in answers] for name in OUTPUTS}, wanted)


def test_empty_sequences(session: Session) -> None:
    assert session.run([[]])[OUTPUTS[0]][0].shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([5, 6], "sequence 0: type int64, allowed: floats; pass embeddings"),
        (np.zeros((2, 3), np.float32), rf"sequence 0: shape \[2, 3\], allowed: \[length, {WIDTH}\]"),
        (np.full((2, WIDTH), np.nan, np.float32), "nan at sequence 0, position 0: allowed: finite numbers"),
        (np.full((2, WIDTH), np.inf), "inf at sequence 0, position 0: allowed: finite numbers"),
    ],
)
def test_what_are_no_embeddings(session: Session, row: Any, reason: str) -> None:
    """Numbers that are not finite would spoil other sequences, even though those have the weight 0 for them."""
    with pytest.raises(SessionError, match=reason):
        session.run([row])


def test_profile(session: Session) -> None:
    profile = choose_profile(session.metadata, ProfileOptions(max_batch=4, max_seq_len=16))
    (actual,) = [item for item in shape_ranges(session.metadata, profile) if item.name == INPUT]
    assert actual.maximum[-1] == actual.minimum[-1] == WIDTH
    assert len(actual.maximum) == (2 if session.metadata.interface == "packed" else 3)


def test_what_takes_ids_refuses_embeddings(tmp_path: Path) -> None:
    path = save_rewritten(NAME, tmp_path)
    with pytest.raises(BuildError, match=f"'{INPUT}' has several numbers a token"):
        choose(path, ServingOptions("bert"))
    with pytest.raises(RewriteError, match=rf"takes embeddings \('{INPUT}'\) and no ids"):
        rewrite(load(NAME), interface="varseqlen", verify=False)
