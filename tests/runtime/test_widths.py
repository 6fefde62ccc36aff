# SPDX-License-Identifier: Apache-2.0
"""Inputs with several numbers per token, such as LayoutLM's boxes: [T, N] and [B, S, N]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.engine.profile import ProfileOptions, choose_profile, shape_ranges
from padfree.builder.errors import BuildError
from padfree.builder.triton.serving import ServingOptions, choose
from padfree.contract.metadata import parse_metadata
from padfree.onnx_tools import rewrite
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, Budget, FirstCome

from tests.support.exports import inputs_of, load, metadata_of, save_rewritten, sequences, truth

NAME, OUTPUT, LENGTHS = "layoutlm_torchscript", "last_hidden_state", (5, 1, 9, 2)


@pytest.fixture(scope="module", params=["packed", "padded"])
def session(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(save_rewritten(NAME, tmp_path_factory.mktemp(request.param), request.param)) as opened:
        yield opened


@pytest.fixture(scope="module")
def given() -> list[dict[str, np.ndarray]]:
    return sequences(inputs_of(NAME), LENGTHS)


@pytest.fixture(scope="module")
def wanted(given: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    return [row[0][0] for row in truth(load(NAME), given, [OUTPUT])]


def columns(requests: list[dict[str, np.ndarray]]) -> dict[str, list[np.ndarray]]:
    return {name: [row[name] for row in requests] for name in ("input_ids", "bbox")}


def assert_close(actual: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, two in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)


def test_a_list_of_boxes_a_sequence(
    session: Session, given: list[dict[str, np.ndarray]], wanted: list[np.ndarray]
) -> None:
    assert_close(session.run(columns(given))[OUTPUT], wanted)
    plain = {name: [row.tolist() for row in rows] for name, rows in columns(given).items()}
    assert_close(session.run(plain)[OUTPUT], wanted)


def test_requests_are_cut_in_parts(
    session: Session, given: list[dict[str, np.ndarray]], wanted: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_budget", Budget(10, 2, session.metadata.interface == "padded"))
    assert_close(session.run(columns(given))[OUTPUT], wanted)


def test_packed_tokens(session: Session, given: list[dict[str, np.ndarray]], wanted: list[np.ndarray]) -> None:
    if session.metadata.interface == "packed":
        packed = {name: np.concatenate(rows) for name, rows in columns(given).items()}
        actual = session.run_packed(packed, list(LENGTHS))[OUTPUT]
        assert_close(np.split(actual, np.cumsum(LENGTHS)[:-1]), wanted)
        with pytest.raises(SessionError, match=r"'bbox' has shape \[17, 3\], allowed: \[tokens, 4\]"):
            session.run_packed({**packed, "bbox": packed["bbox"][:, :3]}, list(LENGTHS))


def test_requests_that_wait_run_together(
    session: Session, given: list[dict[str, np.ndarray]], wanted: list[np.ndarray]
) -> None:
    with Batcher(session, FirstCome(session.budget)) as batcher:
        asked = [batcher.submit({name: row[name] for name in ("input_ids", "bbox")}) for row in given]
        assert_close([item.result(timeout=60)[OUTPUT] for item in asked], wanted)


def test_empty_sequences(session: Session) -> None:
    assert session.run({"input_ids": [[]], "bbox": [[]]})[OUTPUT][0].shape[0] == 0


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([[1, 2]], r"sequence 0: shape \[2\], allowed: \[length, 4\]"),
        ([[[1, 2, 3], [1, 2, 3]]], r"sequence 0: shape \[2, 3\], allowed: \[length, 4\]"),
        ([[[1, 2, 3, 4]]], r"sequence 0: 1 values, 'input_ids' has 2"),
        ([[[1, 2, 3, 4], [1, 2, 3, 64]]], r"64 at sequence 0, position 1: allowed 0\.\.63; scale the numbers"),
        ([[[0.5, 2, 3, 4], [1, 2, 3, 4]]], r"type float64, allowed: integers"),
    ],
)
def test_what_are_no_boxes(session: Session, boxes: list[Any], reason: str) -> None:
    with pytest.raises(SessionError, match=reason):
        session.run({"input_ids": [[5, 6]], "bbox": boxes})


def test_profile(session: Session) -> None:
    profile = choose_profile(session.metadata, ProfileOptions(max_batch=4, max_seq_len=16))
    ranges = {item.name: item for item in shape_ranges(session.metadata, profile)}
    leading = ranges["input_ids"].maximum
    assert ranges["bbox"].maximum == (*leading, 4)
    assert ranges["bbox"].minimum == (*ranges["input_ids"].minimum, 4)


def test_a_model_of_boxes_alone_is_damaged_metadata() -> None:
    raw = dict(metadata_of(rewrite(load(NAME), verify=False)))
    raw["inputs"] = [item for item in raw["inputs"] if item["name"] != "input_ids"]
    with pytest.raises(ValueError, match="needs an input of role 'tokens'"):
        parse_metadata(raw, "a file", ValueError)


def test_model_repositories_have_no_boxes(tmp_path: Path) -> None:
    path = save_rewritten(NAME, tmp_path)
    with pytest.raises(BuildError, match="'bbox' has several numbers a token"):
        choose(path, ServingOptions("layoutlm"))
