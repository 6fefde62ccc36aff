# SPDX-License-Identifier: Apache-2.0
"""Models that read padding: packed if padding holds what tokenizers fill it with; this is reported and kept to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from padfree.builder.cli import main
from padfree.contract.metadata import parse_metadata
from padfree.onnx_tools import RewriteError, rewrite, save_model
from padfree.runtime import Session, SessionError

from tests.onnx_tools.agreement import INTERFACES
from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder, with_output
from tests.support.exports import metadata_of
from tests.support.sequence_models import alone

SHAPE: list[object] = ["batch", "sequence", HIDDEN]


def trigrams(padding: int | None = 0) -> ModelProto:
    """Every token's row has the next slot's added, as in MobileBERT; padding's row in the table is zeros."""
    b = EncoderBuilder()
    table = b.weight(VOCABULARY, HIDDEN)
    if padding is not None:
        values = numpy_helper.to_array(b.constants[-1]).copy()
        values[padding] = 0
        b.constants[-1].CopyFrom(numpy_helper.from_array(values, table))
    words = b.op("Gather", table, "input_ids")
    rest = b.op("Slice", words, b.axes(1), b.axes(2**31 - 1), b.axes(1))
    after = b.op("Pad", rest, b.constant([0, 0, 0, 0, 1, 0], np.int64), b.constant(0.0))
    x = b.linear(b.op("Concat", words, after, axis=2), 2 * HIDDEN, HIDDEN)
    return with_output(b.layer(x, b.padding_mask()), b, SHAPE)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("padding", [0, 1])
def test_usual_padding_is_tried_and_noted(padding: int, interface: str) -> None:
    result = rewrite(trigrams(padding), interface=interface)
    assert result.report.notes[0].startswith(
        f"the original reads padding, which was taken to hold {padding} in 'input_ids'"
    )
    metadata = parse_metadata(metadata_of(result), "model")
    (ids,) = metadata.token_inputs()
    assert (ids.padding, ids.fills_padding) == (padding, True)


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_id_whose_row_is_zeros_is_tried_and_noted(interface: str) -> None:
    for named in (None, 5):
        assert "hold 5 in 'input_ids'" in rewrite(trigrams(5), interface=interface, padding_id=named).report.notes[0]
    with pytest.raises(RewriteError, match=r"padding holds 4 alone \(--padding-id\), the model does not"):
        rewrite(trigrams(5), interface=interface, padding_id=4)


def test_padding_that_counts_is_refused() -> None:
    """No row of the table is zeros: a sequence in a batch gets another result than alone, whatever is named."""
    with pytest.raises(RewriteError, match="padding holds 0 or 1 alone") as error:
        rewrite(trigrams(None))
    assert "name" not in str(error.value)


def test_the_assumption_is_verified_where_nothing_else_is() -> None:
    assert rewrite(trigrams(), verify=False).report.notes
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(trigrams(None), verify=False)


def save(interface: str, tmp_path: Path) -> Path:
    save_model(rewrite(trigrams(1), interface=interface).model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("interface", INTERFACES)
def test_sessions_give_what_sequences_get_alone(interface: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(2, VOCABULARY, length) for length in (6, 3, 1)]
    with Session(save(interface, tmp_path)) as session:
        for one, row in zip(session.run(ids)["y"], alone(trigrams(1), ids, {}), strict=True):
            np.testing.assert_allclose(one, row["y"], atol=2e-5)


def test_other_ids_in_padding_are_refused_when_the_padded_model_runs(tmp_path: Path) -> None:
    mask = np.asarray([[1, 1, 1], [1, 0, 0]])
    with Session(save("padded", tmp_path)) as session:
        session.backend.run({"input_ids": np.asarray([[3, 4, 5], [6, 1, 1]]), "attention_mask": mask})
        with pytest.raises(
            SessionError, match=r"holds 9 in the padding of sequence 1 \(slot 2\), allowed: 1: the model"
        ):
            session.backend.run({"input_ids": np.asarray([[3, 4, 5], [6, 1, 9]]), "attention_mask": mask})


def with_entities() -> ModelProto:
    """The mean of an entity's tokens, which have a mask of their own; it is 0 in padding."""
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    marks = b.op("Unsqueeze", b.op("Cast", "entity_mask", to=TensorProto.FLOAT), b.axes(2))
    total = b.op("ReduceSum", b.op("Mul", x, marks), b.axes(1), keepdims=0)
    count = b.op("Max", b.op("ReduceSum", marks, b.axes(1), keepdims=0), b.constant(1.0))
    return with_output(b.op("Div", total, count), b, ["batch", HIDDEN], "entity_mask")


def with_scatter() -> ModelProto:
    """A weight for every token, summed by id into a vector over the vocabulary, without the padding's entry."""
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    weights = b.op("Relu", b.op("Squeeze", b.linear(x, HIDDEN, 1), b.axes(2)))
    rows = b.op("Slice", b.op("Shape", "input_ids"), b.axes(0), b.axes(1), b.axes(0))
    shape = b.op("Concat", rows, b.constant([VOCABULARY], np.int64), axis=0)
    empty = b.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, np.float32)))
    actual = b.op("ScatterElements", empty, "input_ids", weights, axis=1, reduction="add")
    keep = np.ones(VOCABULARY)
    keep[0] = 0
    return with_output(b.op("Mul", actual, b.constant(keep)), b, ["batch", VOCABULARY])


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("make", [with_entities, with_scatter])
def test_masks_of_entities_and_vectors_by_id(make: Callable[[], ModelProto], interface: str, tmp_path: Path) -> None:
    model = make()
    save_model(rewrite(model, interface=interface).model, tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, VOCABULARY, length) for length in (6, 3, 1)]
    marks = [rng.integers(0, 2, len(row)) for row in ids]
    more = {"entity_mask": marks} if make is with_entities else {}
    original = ort.InferenceSession(model.SerializeToString())
    with Session(tmp_path / "model.onnx") as session:
        actual = session.run({"input_ids": ids, **more})["y"]
    for at, (one, row) in enumerate(zip(actual, ids, strict=True)):
        feeds = {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}
        (wanted,) = original.run(None, feeds | {name: values[at][None] for name, values in more.items()})
        np.testing.assert_allclose(one, wanted[0], atol=2e-5)


def test_the_command_names_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, packed = tmp_path / "original.onnx", tmp_path / "packed.onnx"
    save_model(trigrams(5), original)
    assert main(["optimize", str(original), "-o", str(packed), "--padding-id", "5"]) == 0
    assert "taken to hold 5 in 'input_ids'" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", str(original), str(packed)]) == 0
