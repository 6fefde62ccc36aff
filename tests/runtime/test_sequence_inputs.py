# SPDX-License-Identifier: Apache-2.0
"""Requests to models with inputs that have a row for every sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.engine.profile import ProfileOptions, choose_profile, shape_ranges
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.request import RaggedBatch, read_request
from padfree.runtime.triton.items import join, read_item

from tests.support.encoder import VOCABULARY
from tests.support.sequence_models import alone, rows_of, with_rows

LENGTHS = (5, 1, 9, 2)


@pytest.fixture(scope="module", params=["packed", "padded"])
def session(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    file = tmp_path_factory.mktemp(request.param) / "model.onnx"
    save_model(rewrite(with_rows(), interface=request.param).model, file)
    with Session(file) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, VOCABULARY, length) for length in LENGTHS]


ROWS = rows_of(len(LENGTHS))


@pytest.fixture(scope="module")
def wanted(ids: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    return alone(with_rows(), ids, ROWS)


def assert_right(actual: dict[str, list[np.ndarray]], wanted: list[dict[str, np.ndarray]]) -> None:
    for name in ("hidden", "vector", "row_id_out"):
        for one, row in zip(actual[name], wanted, strict=True):
            np.testing.assert_allclose(one, row[name], atol=2e-5)


def test_every_sequence_gets_its_own_row(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    assert_right(session.run({"input_ids": ids, **ROWS}), wanted)
    lists = {name: values.tolist() for name, values in ROWS.items()}
    assert_right(session.run({"input_ids": [row.tolist() for row in ids], **lists}), wanted)


def test_a_number_may_stand_for_a_row_of_one(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    rows = {**ROWS, "source": ROWS["source"][:, 0], "language": ROWS["language"][:, None]}
    assert_right(session.run({"input_ids": ids, **rows}), wanted)


def test_parts_of_a_request_keep_their_rows(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("padfree.runtime.cpu_runs.FEW_SLOTS", 4)
    monkeypatch.setattr("padfree.runtime.cpu_runs.SLOTS_A_TOKEN", 1)
    assert_right(session.run({"input_ids": ids, **ROWS}), wanted)


def test_single_requests_and_groups_share_runs(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    with Batcher(session, FirstCome(session.budget), cache_bytes=1 << 16) as batcher:
        each = [{name: values[at] for name, values in ROWS.items()} for at in range(len(ids))]
        futures = [batcher.submit({"input_ids": row, **rows}) for row, rows in zip(ids, each, strict=True)]
        group = batcher.submit_group({"input_ids": ids, **ROWS})
        other = batcher.submit({"input_ids": ids[0], **each[1]})
        for future, row in zip(futures, wanted, strict=True):
            np.testing.assert_allclose(future.result()["vector"], row["vector"], atol=2e-5)
        assert_right(group.result(), wanted)
        assert not np.allclose(other.result()["vector"], wanted[0]["vector"], atol=1e-3)  # not an answer from the cache


def test_batches_are_cut_joined_and_chosen_from(session: Session, ids: list[np.ndarray]) -> None:
    ragged = read_request({"input_ids": ids, **ROWS}, session.metadata)
    parts = ragged.parts([slice(0, 1), slice(1, 4)])
    np.testing.assert_array_equal(RaggedBatch.join(parts).of_sequences["features"], ROWS["features"])
    np.testing.assert_array_equal(ragged.take([2, 0]).of_sequences["language"], ROWS["language"][[2, 0]])
    again = read_request(ragged.rows(), session.metadata)
    np.testing.assert_array_equal(again.of_sequences["source"], ROWS["source"])


def test_packed_tokens_come_with_their_rows(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    if not session.metadata.is_packed:
        pytest.skip("run_packed is for packed models")
    actual = session.run_packed({"input_ids": np.concatenate(ids), **ROWS}, LENGTHS)
    np.testing.assert_allclose(actual["vector"], [row["vector"] for row in wanted], atol=2e-5)


def test_triton_items_keep_their_rows(session: Session, ids: list[np.ndarray]) -> None:
    def item(positions: list[int]) -> Any:
        width = max(LENGTHS[at] for at in positions)
        grid = np.asarray([np.pad(ids[at], (0, width - LENGTHS[at])) for at in positions], np.int32)
        lens = np.asarray([[LENGTHS[at]] for at in positions], np.int32)
        rows = {name: values[positions].reshape(len(positions), -1) for name, values in ROWS.items()}
        return read_item({"input_ids": grid, "seq_lens": lens, **rows}, session.metadata)

    ragged = join([item([0, 1]), item([2, 3])], session.metadata)
    for name, values in ROWS.items():
        np.testing.assert_array_equal(ragged.of_sequences[name], values)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"language": None}, "'language' is missing; pass a number for every sequence, .* --fix language=NUMBER"),
        ({"features": None}, "'features' is missing; pass 3 numbers for every sequence"),
        ({"language": [0, 1, 2, 5]}, r"'language' is 5 for sequence 3, allowed: 0\.\.4"),
        ({"language": [0, -1, 2, 3]}, r"'language' is -1 for sequence 1, allowed: 0\.\.4"),
        ({"language": [0, 1, 2]}, r"'language' has shape \[3\], allowed: \[4\]"),
        ({"language": 3}, r"'language' has shape \[\], allowed: \[4\]"),
        ({"language": [0.0, 1.0, 2.0, 3.0]}, "'language' has type float64, allowed: integers"),
        ({"features": np.zeros((4, 2))}, r"'features' has shape \[4, 2\], allowed: \[4, 3\]"),
        ({"features": np.full((4, 3), np.nan)}, "'features' is nan for sequence 0, allowed: finite numbers"),
        ({"row_id": [1 << 40, 0, 0, 0]}, "'row_id' is 1099511627776 for sequence 0, allowed: -2147483648"),
        ({"features": [[1.0], [1.0, 2.0], [], [0.0]]}, "'features': cannot become an array"),
        ({"region": [0, 0, 0, 0]}, "token inputs are input_ids, and of sequences language, source, features, row_id"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    session: Session, ids: list[np.ndarray], rows: dict[str, Any], reason: str
) -> None:
    request = {name: values for name, values in {"input_ids": ids, **ROWS, **rows}.items() if values is not None}
    with pytest.raises(SessionError, match=reason):
        session.run(request)


def test_engines_get_a_profile_for_them(session: Session) -> None:
    options = ProfileOptions(max_batch=8, max_seq_len=16)
    metadata = session.metadata
    ranges = {item.name: item for item in shape_ranges(metadata, choose_profile(metadata, options))}
    assert (ranges["language"].minimum, ranges["language"].maximum) == ((1,), (8,))
    assert (ranges["features"].minimum, ranges["features"].maximum) == ((1, 3), (8, 3))


def test_a_file_from_the_disk_says_the_same(tmp_path: Path) -> None:
    """The inputs' roles are in the metadata of the file."""
    save_model(rewrite(with_rows(), verify=False).model, tmp_path / "model.onnx")
    with Session(tmp_path / "model.onnx") as session:
        assert [item.name for item in session.metadata.sequence_inputs()] == [*ROWS]
