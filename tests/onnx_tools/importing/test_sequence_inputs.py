# SPDX-License-Identifier: Apache-2.0
"""Inputs with a row per sequence, [B] and [B,N], and inputs that are bound to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto
from padfree.builder.cli import main
from padfree.contract.metadata import parse_metadata
from padfree.onnx_tools import RewriteError, bind_inputs, rewrite, save_model

from tests.onnx_tools.agreement import INTERFACES
from tests.support.encoder import VOCABULARY, one_layer, with_output
from tests.support.exports import metadata_of
from tests.support.sequence_models import with_page, with_rows, with_scalar, with_shared


@pytest.mark.parametrize("interface", INTERFACES)
def test_rows_of_sequences_are_inputs_of_their_own(interface: str) -> None:
    result = rewrite(with_rows(), interface=interface, strict=True)
    metadata = parse_metadata(metadata_of(result), "model")
    results = {item.name: (item.dtype, item.width, item.limit) for item in metadata.sequence_inputs()}
    integer = "int32" if interface == "packed" else "int64"
    assert results == {
        "language": (integer, None, 5),
        "source": (integer, 1, 4),
        "features": ("float32", 3, None),
        "row_id": (integer, None, None),
    }
    assert [item.name for item in metadata.token_inputs()] == ["input_ids"]
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in result.model.graph.input
    }
    assert (shapes["language"], shapes["features"]) == (["B"], ["B", 3])
    assert result.report.outputs["row_id_out"] == "per_sequence"


def test_a_row_of_a_table_reaches_packed_tokens() -> None:
    """Nothing stays [B,S], although a row per sequence is added to its tokens."""
    report = rewrite(with_rows(), strict=True).report
    assert report.complete
    assert report.packed_gemm_share == 1.0


@pytest.mark.parametrize("interface", INTERFACES)
def test_one_value_for_the_whole_batch_is_an_input(interface: str) -> None:
    result = rewrite(with_shared(), interface=interface, strict=True)
    metadata = parse_metadata(metadata_of(result), "model")
    assert {item.name: (item.width, item.limit, item.shared) for item in metadata.sequence_inputs()} == {
        "task": (None, 5, True),
        "factor": (1, None, True),
        "features": (3, None, True),
        "turned": (None, None, True),
    }
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in result.model.graph.input
    }
    batch = ["B"] if interface == "packed" else []
    assert {name: shapes[name] for name in ("task", "factor", "features")} == {
        "task": batch,
        "factor": [*batch, 1],
        "features": [*batch, 3],
    }
    assert result.report.complete


def test_values_of_several_axes_for_a_batch_are_refused_and_bound_as_the_message_says() -> None:
    model = with_scalar(axes=4)
    with pytest.raises(RewriteError, match=r"'task' is INT64 \[1, 1, 1, 1\], .* at most one axis .* --fix task=NUMBER"):
        rewrite(model)
    assert rewrite(bind_inputs(model, {"task": 3}), strict=True).report.complete


def test_a_value_for_a_batch_beside_fixed_sizes_is_bound_as_the_message_says() -> None:
    model = with_scalar()
    for value in model.graph.input:
        if value.name != "task":
            value.type.tensor_type.shape.dim[0].dim_value, value.type.tensor_type.shape.dim[1].dim_value = 1, 7
    with pytest.raises(RewriteError, match=r"'task' is INT64 \[\], and the others fix sizes; .* --fix task=NUMBER"):
        rewrite(model)
    assert rewrite(bind_inputs(model, {"task": 3}), strict=True).report.complete


@pytest.mark.parametrize("model", [with_rows(), with_scalar()])
def test_engines_of_other_callers_cannot_take_them(model: ModelProto) -> None:
    with pytest.raises(RewriteError, match=r"'(language|task)', for which the interface varseqlen has no place"):
        rewrite(model, interface="varseqlen")


@pytest.mark.parametrize("interface", INTERFACES)
def test_one_value_for_the_whole_batch_is_bound(interface: str) -> None:
    result = rewrite(bind_inputs(with_scalar(), {"task": 3}), interface=interface, strict=True)
    assert metadata_of(result)["fixed"] == {"task": 3}
    assert all(item["name"] != "task" for item in metadata_of(result)["inputs"])


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (with_scalar(), {"task": 4}),
        (with_rows(), {"language": 2, "source": 3, "features": 0.25, "row_id": 7}),
        (with_rows(), {"attention_mask": 1}),
    ],
)
def test_a_bound_model_gives_what_the_original_does_with_the_number(model: ModelProto, values: dict[str, Any]) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (3, 5))
    feeds: dict[str, np.ndarray] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    rows = {"language": np.full(3, 2), "source": np.full((3, 1), 3), "row_id": np.full(3, 7), "task": np.asarray(4)}
    rows["features"] = np.full((3, 3), 0.25, np.float32)
    sessions = [ort.InferenceSession(item.SerializeToString()) for item in (model, bind_inputs(model, values))]
    known = {**feeds, **rows}
    assert not values.keys() & {item.name for item in sessions[1].get_inputs()}
    wanted, actual = (
        session.run(None, {item.name: known[item.name] for item in session.get_inputs()}) for session in sessions
    )
    for a, b in zip(wanted, actual, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tasks": 1}, "--fix tasks: is no input of the model; its inputs are input_ids, attention_mask, task"),
        ({"task": 1.5}, "--fix task=1.5: the input is INT64, which has no such number"),
        ({"task": 1 << 70}, "has no such number"),
        ({"input_ids": 1, "attention_mask": 1}, "--fix input_ids: no other input tells how long its 2 axes are"),
    ],
)
def test_what_cannot_be_bound_is_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(RewriteError, match=reason):
        bind_inputs(with_scalar(), values)


def test_rows_beside_fixed_sizes_are_refused_with_their_names() -> None:
    model = with_rows()
    for value in model.graph.input:
        if value.name in ("input_ids", "attention_mask"):
            value.type.tensor_type.shape.dim[1].dim_value = 7
    with pytest.raises(RewriteError, match=r"'language' has one value for every .* 'input_ids' \[batch, 7\] has fixed"):
        rewrite(model)


def test_names_of_the_packed_interface_are_not_given_twice() -> None:
    model = with_rows()
    for value in model.graph.input:
        value.name = "seq_lens" if value.name == "row_id" else value.name
    for node in model.graph.node:
        node.input[:] = ["seq_lens" if name == "row_id" else name for name in node.input]
    with pytest.raises(RewriteError, match="input 'seq_lens' has the name of an input that the packed interface adds"):
        rewrite(model)


def test_a_fixed_second_axis_of_several_integers_is_a_sequence_still() -> None:
    """Files in which only one token input has a fixed length are treated as before."""
    builder, hidden = one_layer()
    model = with_output(hidden, builder, ["batch", "sequence", None])
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 7
    assert model.graph.input[1].type.tensor_type.elem_type == TensorProto.INT64
    assert metadata_of(rewrite(model))["max_positions"] == 7


@pytest.mark.parametrize("interface", INTERFACES)
def test_several_integers_of_a_sequence_are_told_from_tokens_by_running_the_file(
    interface: str, tmp_path: Path
) -> None:
    original, output = tmp_path / "original.onnx", tmp_path / "made.onnx"
    save_model(with_page(), original)
    result = rewrite(str(original), interface=interface, strict=True)
    (page,) = parse_metadata(metadata_of(result), "model").sequence_inputs()
    assert (page.name, page.width, page.limit) == ("page", 4, 7)
    save_model(result.model, output)
    assert main(["compare", str(original), str(output)]) == 0
