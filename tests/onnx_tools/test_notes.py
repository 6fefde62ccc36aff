# SPDX-License-Identifier: Apache-2.0
"""What the report says about inputs and outputs with misleading names, and its consequences when the model runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from padfree.builder.cli import main
from padfree.builder.cli.coverage import verdict
from padfree.builder.cli.summary import packed_text
from padfree.builder.coverage import report
from padfree.onnx_tools import RewriteError, rewrite, save_model
from padfree.onnx_tools.cost import Lengths
from padfree.runtime import Session

from tests.onnx_tools.agreement import INTERFACES
from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder, one_layer, with_output
from tests.support.exports import metadata_of
from tests.support.sequence_models import alone, with_rows

SHAPE: list[object] = ["batch", "sequence", HIDDEN]


def without_mask() -> ModelProto:
    """attention_mask is an input that nothing reads."""
    builder = EncoderBuilder()
    return with_output(builder.layer(builder.embedding(), None), builder, SHAPE)


def aliased_input_model() -> ModelProto:
    """One tensor for two arguments: ids come in as attention_mask, and nothing reads input_ids."""
    model = without_mask()
    for node in model.graph.node:
        node.input[:] = ["attention_mask" if name == "input_ids" else name for name in node.input]
    return model


def exchanged_input_model(first: str, second: str) -> ModelProto:
    """Two inputs, each under the other's name; types select from a table of two rows."""
    builder = EncoderBuilder()
    types = builder.op("Gather", builder.weight(2, HIDDEN), "token_type_ids")
    x = builder.layer(builder.op("Add", builder.embedding(), types), builder.padding_mask())
    model = with_output(x, builder, SHAPE, "token_type_ids")
    names = {first: second, second: first}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


def test_a_mask_that_nothing_reads_comes_first() -> None:
    result = rewrite(without_mask(), interface="padded")
    said = str(result.report).splitlines()[0]
    assert said == (
        "note: nothing reads the input 'attention_mask', and no other tells what is padding: every slot counts as a "
        "token, and padding changes results, as it does in the original"
    )
    assert metadata_of(result)["unread"] == ["attention_mask"]
    assert "nothing computes padding" not in verdict(result.report.to_dict())
    assert "no padding is computed" not in packed_text(result.report.to_dict())
    costs = report(result.report.to_dict(), Lengths(4, 10.0, 40))["costs"]
    assert costs["flop_ratio"] == pytest.approx(1.0)


def test_padding_counts_as_in_the_original(tmp_path: Path) -> None:
    model = without_mask()
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (2, 6))
    wanted = alone(model, list(ids), {})
    save_model(rewrite(model, interface="padded").model, tmp_path / "model.onnx")
    with Session(tmp_path / "model.onnx") as session:
        actual = session.run(list(ids))["y"]
        feeds = {"input_ids": ids, "attention_mask": np.asarray([[1] * 6, [1, 1, 0, 0, 0, 0]])}
        (inputs,) = session.backend.run(feeds).values()
    for row, one, other in zip(wanted, actual, inputs, strict=True):
        np.testing.assert_allclose(one, row["y"], atol=2e-5)
        np.testing.assert_allclose(other, row["y"], atol=2e-5)


def test_packed_models_have_no_such_input(tmp_path: Path) -> None:
    model = without_mask()
    ids = [np.arange(5), np.arange(2) + 3]
    result = rewrite(model)
    assert "what the original gives it alone" in result.report.notes[0]
    assert [value.name for value in result.model.graph.input] == ["input_ids", "seq_lens"]
    save_model(result.model, tmp_path / "model.onnx")
    with Session(tmp_path / "model.onnx") as session:
        for one, row in zip(session.run(ids)["y"], alone(model, ids, {}), strict=True):
            np.testing.assert_allclose(one, row["y"], atol=2e-5)


@pytest.mark.parametrize("interface", INTERFACES)
def test_ids_that_come_in_as_the_mask_are_said(interface: str) -> None:
    result = rewrite(aliased_input_model(), interface=interface)
    first, second, *_ = result.report.notes
    assert first.startswith("nothing reads the input 'input_ids'")
    assert second.startswith(f"ids are read from 'attention_mask', which chooses from a table of {VOCABULARY} rows")
    tokens = [item["name"] for item in metadata_of(result)["inputs"] if item["role"] == "tokens"]
    assert tokens == ["attention_mask"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("input_ids", "token_type_ids"),
            "'token_type_ids' chooses from a table of 20 rows, 'input_ids' from one of 2",
        ),
        (
            ("attention_mask", "token_type_ids"),
            "'token_type_ids' is the padding mask, and 'attention_mask' chooses from a table of 2 rows",
        ),
    ],
)
@pytest.mark.parametrize("interface", INTERFACES)
def test_exchanged_names_are_mentioned(names: tuple[str, str], said: str, interface: str) -> None:
    assert any(
        note.startswith(said) for note in rewrite(exchanged_input_model(*names), interface=interface).report.notes
    )


def test_rows_that_are_zeros_are_said_of_the_padded_interface_alone() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, SHAPE)
    (note,) = rewrite(model, interface="padded").report.notes
    assert note.startswith("rows of masked slots are zeros in 'y', where the original has numbers")
    assert rewrite(model).report.notes == ()


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_unread_input_may_be_one_of_sequences(interface: str) -> None:
    """A number per sequence that no output depends on is not an input of the packed model."""
    model = with_rows()
    del model.graph.output[2:]  # they depend on row_id
    result = rewrite(model, interface=interface)
    assert result.report.notes[0] == "nothing reads the input 'row_id'"
    named = {item["name"]: item["role"] for item in metadata_of(result)["inputs"]}
    assert named.get("row_id") == (None if interface == "packed" else "per_sequence")


def test_means_over_the_batchs_length_want_a_mask() -> None:
    """Without a mask, a sum over ones is divided by a length that packed sequences do not share."""
    b = EncoderBuilder()
    x = b.layer(b.embedding(), None)
    ones = b.op("ConstantOfShape", b.op("Shape", "input_ids"), value=numpy_helper.from_array(np.ones(1, np.float32)))
    total = b.op("ReduceSum", b.op("Mul", x, b.op("Unsqueeze", ones, b.axes(2))), b.axes(1), keepdims=0)
    count = b.op("Max", b.op("ReduceSum", ones, b.axes(1), keepdims=1), b.constant(1e-6))
    model = with_output(b.op("Div", total, count), b, ["batch", HIDDEN])
    with pytest.raises(RewriteError, match="no input tells what is padding, and the model computes with the length of"):
        rewrite(model)
    assert rewrite(model, interface="padded").report.every_slot_counts


def test_bench_wants_batches_of_one_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, lengths = tmp_path / "model.onnx", tmp_path / "lengths.txt"
    save_model(without_mask(), model)
    lengths.write_text("9 9 9")
    command = ["bench", str(model), "--cpu", "--seq-len", "9"]
    assert main([*command, "--batch", "3"]) == 1
    assert "no input of the model tells what is padding" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--lengths", str(lengths)]) == 0
