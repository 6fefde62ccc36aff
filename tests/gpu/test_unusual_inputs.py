# SPDX-License-Identifier: Apache-2.0
"""Engines of models with inputs that are not one value per token, and of models that read padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from padfree.builder import build_engine
from padfree.onnx_tools import bind_inputs, save_model
from padfree.runtime import Session, SessionError

from tests.onnx_tools.importing.test_grouped_attention import model_of as grouped_model
from tests.onnx_tools.importing.test_lengths import model_of as lengths_model
from tests.onnx_tools.test_notes import without_mask
from tests.onnx_tools.verification.test_read_padding import trigrams, with_entities
from tests.support.encoder import VOCABULARY
from tests.support.sequence_models import alone, rows_of, with_rows, with_scalar, with_shared

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

INTERFACES, LENGTHS = ("packed", "padded"), (5, 1, 9, 2, 16)
# For outputs of magnitude 1 in fp32: sums in another order, and products in TF32.
TOLERANCE = 5e-3
ROUNDS = 24
"""A plain run, the one that is captured, and replays of the graph, each with other values: enough to show a race."""


def build(model: ModelProto, interface: str, folder: Path) -> Path:
    """Builds a plan in fp32; the build compares its answers with the original's, too."""
    save_model(model, folder / "model.onnx")
    plan = folder / "model.plan"
    build_engine(folder / "model.onnx", plan, interface=interface, precision="fp32", max_batch=8, max_seq_len=16)
    return plan


def ids_of(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, length) for length in lengths]


def assert_same(session: Session, model: ModelProto, ids: list[np.ndarray], rows: Mapping[str, np.ndarray]) -> None:
    found = session.run({session.metadata.ids_input().name: ids, **rows})
    for name, values in found.items():
        for at, row in enumerate(alone(model, ids, rows)):
            np.testing.assert_allclose(values[at], row[name], atol=TOLERANCE, err_msg=f"{name} of sequence {at}")


@pytest.mark.parametrize("interface", INTERFACES)
def test_rows_of_sequences(interface: str, tmp_path: Path) -> None:
    """Inputs [B], [B,1], floats [B,3], ids that pass through, in plain runs and in CUDA graphs of rounded batches."""
    model = with_rows()
    with Session(build(model, interface, tmp_path)) as session:
        for seed in range(ROUNDS):
            assert_same(session, model, ids_of(seed), rows_of(len(LENGTHS), seed))
        with pytest.raises(SessionError, match="'language' is 5 for sequence 0"):
            session.run({"input_ids": ids_of(0)[:1], **rows_of(1), "language": [5]})
        if session.metadata.is_packed:
            ids, rows = ids_of(9), rows_of(len(LENGTHS), 9)
            found = session.run_packed({"input_ids": np.concatenate(ids), **rows}, LENGTHS)
            wanted = [row["vector"] for row in alone(model, ids, rows)]
            np.testing.assert_allclose(found["vector"], wanted, atol=TOLERANCE)


@pytest.mark.parametrize("interface", INTERFACES)
def test_values_of_a_whole_batch(interface: str, tmp_path: Path) -> None:
    """Inputs [], [1], [3] and a bool; sequences with equal values run together, in plain runs and in CUDA graphs."""
    model, count = with_shared(), len(LENGTHS)
    with Session(build(model, interface, tmp_path)) as session:
        for seed in range(ROUNDS):
            rng, ids = np.random.default_rng(seed), ids_of(seed)
            shared = {
                "task": rng.integers(0, 5, 2)[[0, 1, 0, 0, 1]],
                "factor": np.full((count, 1), rng.uniform(0.5, 2.0), np.float32),
                "features": np.repeat(rng.standard_normal((1, 3)).astype(np.float32), count, axis=0),
                "turned": np.full(count, seed % 2),
            }
            found = session.run({"input_ids": ids, **shared})
            wanted = alone(model, ids, {}, {**shared, "turned": shared["turned"].astype(bool)})
            for name, values in found.items():
                for at, row in enumerate(wanted):
                    np.testing.assert_allclose(values[at], row[name], atol=TOLERANCE, err_msg=f"{name} of {at}")


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.FLOAT])
def test_lengths_instead_of_a_mask(kind: int, interface: str, tmp_path: Path) -> None:
    model = lengths_model(kind=kind, mean=True)
    with Session(build(model, interface, tmp_path)) as session:
        for seed in range(ROUNDS):
            ids, dtype = ids_of(seed), np.float32 if kind == TensorProto.FLOAT else np.int64
            found = session.run(ids)["y"]
            for one, row in zip(found, ids, strict=True):
                (wanted,) = _alone_by_length(model, row, dtype)
                np.testing.assert_allclose(one, wanted, atol=TOLERANCE)


def _alone_by_length(model: ModelProto, row: np.ndarray, dtype: type[np.generic]) -> list[np.ndarray]:
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString())
    feeds = {"input_ids": row[None], "valid_length": np.asarray([len(row)], dtype)}
    return [value[0] for value in session.run(None, feeds)]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    "make", [lambda: grouped_model("rotary"), trigrams, lambda: bind_inputs(with_scalar(), {"task": 3})]
)
def test_other_graphs(make: Callable[[], ModelProto], interface: str, tmp_path: Path) -> None:
    """A causal encoder's grouped attention, a model that reads padding, and one with an input that was bound."""
    model = make()
    with Session(build(model, interface, tmp_path)) as session:
        for seed in range(ROUNDS):
            assert_same(session, model, ids_of(seed), {})


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_mask_of_entities(interface: str, tmp_path: Path) -> None:
    model = with_entities()
    with Session(build(model, interface, tmp_path)) as session:
        ids = ids_of(0)
        marks = [np.arange(len(row)) % 2 for row in ids]
        found = session.run({"input_ids": ids, "entity_mask": marks})["y"]
        for one, row, mark in zip(found, ids, marks, strict=True):
            wanted = alone(model, [row], {"entity_mask": mark[None]})[0]["y"]
            np.testing.assert_allclose(one, wanted, atol=TOLERANCE)


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_input_that_nothing_reads(interface: str, tmp_path: Path) -> None:
    """Every slot counts as a token in the padded interface, so that all sequences have one length there."""
    model = without_mask()
    lengths = LENGTHS if interface == "packed" else (7, 7, 7)
    with Session(build(model, interface, tmp_path)) as session:
        for seed in range(ROUNDS):
            assert_same(session, model, ids_of(seed, lengths), {})


def test_other_ids_in_padding_are_refused(tmp_path: Path) -> None:
    mask = np.asarray([[1, 1, 1], [1, 0, 0]])
    feeds = {"input_ids": np.asarray([[3, 4, 5], [6, 1, 9]]), "attention_mask": mask}
    with (
        Session(build(trigrams(1), "padded", tmp_path)) as session,
        pytest.raises(SessionError, match="holds 9 in the padding of sequence 1"),
    ):
        session.backend.run(feeds)
