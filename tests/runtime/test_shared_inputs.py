# SPDX-License-Identifier: Apache-2.0
"""Models with inputs that a whole batch shares give what the original gives for each sequence alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.builder.engine.profile import ProfileOptions, choose_profile, shape_ranges
from padfree.builder.errors import BuildError
from padfree.builder.triton import serving
from padfree.builder.triton.serving import ServingOptions, choose
from padfree.contract.metadata import EngineInfo, Profile
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.request import read_request

from tests.support.encoder import VOCABULARY
from tests.support.sequence_models import LANGUAGES, alone, with_shared

LENGTHS = (5, 1, 9, 2, 4)
SHARED = {
    "task": np.asarray([3, 1, 3, 1, 0]),
    "factor": np.asarray([[2.0], [0.5], [2.0], [0.5], [1.0]], np.float32),
    "features": np.repeat(np.asarray([[1.0, -2.0, 0.25]], np.float32), 5, axis=0),
    "turned": np.asarray([1, 0, 1, 0, 0]),
}


@pytest.fixture(scope="module", params=["packed", "padded"])
def file(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    save_model(rewrite(with_shared(), interface=request.param).model, path)
    return path


@pytest.fixture(scope="module")
def session(file: Path) -> Iterator[Session]:
    with Session(file) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, VOCABULARY, length) for length in LENGTHS]


@pytest.fixture(scope="module")
def wanted(ids: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    return alone(with_shared(), ids, {}, {**SHARED, "turned": SHARED["turned"].astype(bool)})


def assert_right(actual: dict[str, list[np.ndarray]], wanted: list[dict[str, np.ndarray]]) -> None:
    for name in ("hidden", "vector"):
        for one, row in zip(actual[name], wanted, strict=True):
            np.testing.assert_allclose(one, row[name], atol=2e-5)


def test_sequences_of_other_values_run_by_themselves(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    assert_right(session.run({"input_ids": ids, **SHARED}), wanted)


def test_one_value_stands_for_all(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"task": 3, "factor": [2.0], "features": [1.0, -2.0, 0.25], "turned": np.asarray(1)}
    runs = list[int]()
    start = session.backend.start
    monkeypatch.setattr(session.backend, "start", lambda feeds, **more: runs.append(1) or start(feeds, **more))
    actual = session.run({"input_ids": [ids[0], ids[2]], **values})
    assert_right(actual, [wanted[0], wanted[2]])
    assert len(runs) == 1


def test_requests_of_several_callers_keep_their_values(
    session: Session, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]]
) -> None:
    with Batcher(session, FirstCome(session.budget)) as batcher:
        each = [{name: values[at] for name, values in SHARED.items()} for at in range(len(ids))]
        futures = [batcher.submit({"input_ids": row, **rows}) for row, rows in zip(ids, each, strict=True)]
        for future, row in zip(futures, wanted, strict=True):
            np.testing.assert_allclose(future.result()["vector"], row["vector"], atol=2e-5)


def test_a_run_of_packed_tokens_has_one_value(session: Session, ids: list[np.ndarray]) -> None:
    if not session.metadata.is_packed:
        pytest.skip("run_packed is for packed models")
    same = {name: values[0] for name, values in SHARED.items()}
    packed = np.concatenate(ids)
    actual = session.run_packed({"input_ids": packed, **same}, LENGTHS)
    np.testing.assert_allclose(actual["vector"], session.run({"input_ids": ids, **same})["vector"], atol=2e-5)
    with pytest.raises(SessionError, match="'task' is 3 for sequence 0 and 1 for sequence 1: the model has one for a"):
        session.run_packed({"input_ids": packed, **SHARED}, LENGTHS)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"task": None}, "'task' is missing"),
        ({"task": LANGUAGES}, rf"'task' is {LANGUAGES} for sequence 0, allowed: 0\.\.{LANGUAGES - 1}"),
        ({"task": [0, 1]}, r"'task' has shape \[2\], allowed: \[5\]"),
        ({"factor": [np.inf]}, "'factor' is inf for sequence 0, allowed: finite"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    session: Session, ids: list[np.ndarray], values: dict[str, Any], reason: str
) -> None:
    request = {name: value for name, value in {"input_ids": ids, **SHARED, **values}.items() if value is not None}
    with pytest.raises(SessionError, match=reason):
        session.run(request)


def test_engines_have_their_shape(session: Session) -> None:
    metadata = session.metadata
    profile = choose_profile(metadata, ProfileOptions(max_batch=8, max_seq_len=16))
    ranges = {item.name: item for item in shape_ranges(metadata, profile)}
    batch = ((1,), (8,)) if metadata.is_packed else ((), ())
    assert (ranges["task"].minimum, ranges["task"].maximum) == batch
    assert (ranges["features"].minimum, ranges["features"].maximum) == ((*batch[0], 3), (*batch[1], 3))
    feeds = session.feeds(read_request({"input_ids": [[1]], **{k: v[:1] for k, v in SHARED.items()}}, metadata))
    assert feeds["features"].shape == ((1, 3) if metadata.is_packed else (3,))


def test_the_command_line_takes_them_line_by_line(
    file: Path, ids: list[np.ndarray], wanted: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    lines = [
        json.dumps({"input_ids": row.tolist(), **{name: values[at].tolist() for name, values in SHARED.items()}})
        for at, row in enumerate(ids)
    ]
    (tmp_path / "batch.jsonl").write_text("\n".join(lines))
    command = ["run", str(file), "--input", str(tmp_path / "batch.jsonl"), "-o", str(tmp_path / "out.npz")]
    assert main(command) == 0
    with np.load(tmp_path / "out.npz") as actual:
        np.testing.assert_allclose(actual["vector"], [row["vector"] for row in wanted], atol=2e-5)


def test_they_are_compared_with_the_original(file: Path, tmp_path: Path) -> None:
    save_model(with_shared(), tmp_path / "original.onnx")
    assert main(["compare", str(tmp_path / "original.onnx"), str(file), "--runners", "onnxrt,onnxrt-packed"]) == 0


def test_triton_batches_them_in_python_alone(file: Path) -> None:
    assert choose(file, ServingOptions("m", server="24.11")).backend == "python"


def test_tritons_own_backend_would_mix_callers(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    if not session.metadata.is_packed:
        pytest.skip("padded plans are served in Python anyway")
    engine = EngineInfo("10.6.0", "a GPU", "9.0", Profile(1, 8, 64, 8, 16), 1, "0" * 64, {})
    monkeypatch.setattr(serving, "_read", lambda _: replace(session.metadata, engine=engine))
    assert choose(Path("model.plan"), ServingOptions("m", server="24.11")).backend == "python"
    with pytest.raises(BuildError, match=r"'task' once for a whole batch.* --backend python.* --fix task=NUMBER"):
        choose(Path("model.plan"), ServingOptions("m", server="24.11", backend="tensorrt"))
