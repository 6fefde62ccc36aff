# SPDX-License-Identifier: Apache-2.0
"""The advice in refusals: all of it is followed here, and helps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.builder.cli import main
from padfree.onnx_tools import RewriteError, rewrite, save_model

from tests.onnx_tools.agreement import INTERFACES
from tests.support.encoder import HIDDEN, POSITIONS, EncoderBuilder, one_layer, with_output

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LABELS, TRACED = 3, 13


def with_loop(*, named: bool) -> ModelProto:
    """A score per sequence that a Loop sums over its tokens; `named`: the Loop's input is an output too."""
    b, hidden = one_layer()
    emissions = b.op("Identity", b.linear(hidden, HIDDEN, LABELS), output="emissions")
    transposed = b.op("Transpose", emissions, perm=[1, 0, 2], output="by_token")
    start = b.op("Gather", transposed, b.constant(0, np.int64), axis=0)
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["by_token", "step"], ["row"], axis=0),
            helper.make_node("Max", ["total", "row"], ["sum"]),
            helper.make_node("Identity", ["more"], ["goes_on"]),
        ],
        "body",
        [value("step", INT64, []), value("more", BOOL, []), value("total", FLOAT, None)],
        [value("goes_on", BOOL, []), value("sum", FLOAT, None)],
    )
    b.op("Loop", length, b.constant(True, np.bool_), start, output="best", body=body)
    outputs: dict[str, list[Any]] = {"best": ["batch", LABELS]}
    if named:
        outputs = {"emissions": ["batch", "sequence", LABELS], **outputs}
    return b.model(outputs)


def advised_outputs(error: Exception) -> list[str]:
    """The command-line option that a message names."""
    match = re.search(r"--outputs [^ ;]+", str(error))
    assert match is not None, error
    return match.group().split()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("named", "cut"), [(True, "emissions"), (False, "by_token|emissions")])
def test_a_loop_over_tokens_is_cut_off(named: bool, cut: str, interface: str, tmp_path: Path) -> None:
    model = with_loop(named=named)
    with pytest.raises(RewriteError, match=rf"\(Loop\) .* is right for one length only; .* --outputs ({cut})") as error:
        rewrite(model, interface=interface)
    save_model(model, tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "cut.onnx"), "--interface", interface]
    assert main([*command, *advised_outputs(error.value)]) == 0


def with_squeezed_score(axis: int | None, *, chosen: bool = False) -> ModelProto:
    """One score per sequence, squeezed; `chosen`: by an If, as torch writes squeeze(0)."""
    b, hidden = one_layer()
    score = b.linear(b.op("Gather", hidden, b.constant(0, np.int64), axis=1), HIDDEN, 1)
    if not chosen:
        axes = [] if axis is None else [b.axes(axis)]
        return with_output(b.op("Squeeze", score, *axes), b, ["batch"])
    size = b.op("Gather", b.op("Shape", score), b.constant(0, np.int64), axis=0)
    is_one = b.op("Equal", size, b.constant(1, np.int64))
    axes = b.axes(0)
    value = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Squeeze", [score, axes], ["a"])], "then", [], [value("a", FLOAT, None)])
    other = helper.make_graph([helper.make_node("Identity", [score], ["b"])], "other", [], [value("b", FLOAT, None)])
    return with_output(b.op("If", is_one, then_branch=then, else_branch=other), b, ["batch", 1])


def test_a_squeeze_without_axes_is_named_with_the_axis_that_is_meant() -> None:
    meant = r"\(Squeeze\) names no axis, .* of \[B, 1\] .* \(in the model: squeeze\(-1\)\)"
    with pytest.raises(RewriteError, match=f"{meant}.*; correct that in the model"):
        rewrite(with_squeezed_score(None))
    assert rewrite(with_squeezed_score(-1), strict=True).report.outputs["y"] == "per_sequence"


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_choice_that_torch_makes_of_a_squeeze_is_named(interface: str) -> None:
    with pytest.raises(RewriteError, match=r"\(If\) chooses between a Squeeze along axis 0 .* writes x.squeeze\(0\)"):
        rewrite(with_squeezed_score(0, chosen=True), interface=interface)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("column", [True, False])
def test_an_axis_that_is_taken_by_its_index_or_left_packs(column: bool, interface: str) -> None:
    """As the message about the choice says: x[:, 0], or x unchanged."""
    b, hidden = one_layer()
    score = b.linear(b.op("Gather", hidden, b.constant(0, np.int64), axis=1), HIDDEN, 1)
    taken = b.op("Gather", score, b.constant(0, np.int64), axis=1) if column else score
    report = rewrite(with_output(taken, b, ["batch", *[1] * (not column)]), interface=interface, strict=True).report
    assert report.outputs["y"] == "per_sequence"


def trace() -> ModelProto:
    """Positions are a constant of 13 rows, whatever the axes of the inputs say."""
    b = EncoderBuilder()
    words = b.op("Gather", b.weight(POSITIONS, HIDDEN), "input_ids")
    x = b.norm(b.op("Add", words, b.weight(1, TRACED, HIDDEN)))
    return with_output(b.layer(x, b.padding_mask()), b, ["batch", "sequence", HIDDEN])


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_traced_length_is_named_and_made_dynamic(interface: str, tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match=r"reads a constant of 13 rows; the file was traced with 13 tokens") as error:
        rewrite(trace(), interface=interface)
    source, fixed = tmp_path / "model.onnx", tmp_path / "fixed.onnx"
    save_model(trace(), source)
    command = str(error.value).partition("python -m ")[2].replace("SEQUENCE_AXIS", "sequence")
    words = command.replace("model.onnx", str(source)).replace("fixed.onnx", str(fixed)).split()
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
    assert rewrite(str(fixed), interface=interface, strict=True).report.complete


def test_outputs_of_the_whole_batch_are_left_out_as_the_message_says(tmp_path: Path) -> None:
    b, hidden = one_layer()
    b.op("Identity", hidden, output="hidden")
    first = b.op("Gather", hidden, b.constant(0, np.int64), axis=1)
    b.op("ReduceMean", first, axes=[0, 1], keepdims=0, output="mean")
    model = b.model({"hidden": ["batch", "sequence", HIDDEN], "mean": []})
    with pytest.raises(
        RewriteError, match=r"output 'mean' is one result of the whole batch: .* --outputs hidden"
    ) as error:
        rewrite(model)
    save_model(model, tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "cut.onnx")]
    assert main([*command, *advised_outputs(error.value)]) == 0


def test_an_only_output_is_not_to_be_left_out() -> None:
    b, hidden = one_layer()
    first = b.op("Gather", hidden, b.constant(0, np.int64), axis=1)
    model = with_output(b.op("ReduceMean", first, axes=[0, 1], keepdims=0), b, [])
    with pytest.raises(
        RewriteError, match=r"again with one row per sequence.* or choose the padded interface"
    ) as error:
        rewrite(model)
    assert "--outputs" not in str(error.value)
    assert rewrite(model, interface="padded").report.outputs["y"] == "padded"


@pytest.mark.parametrize("name", ["seq_lens", "max_seqlen"])
def test_names_that_the_packed_interface_adds_are_free_in_the_padded_one(name: str) -> None:
    b, hidden = one_layer()
    b.op("Identity", hidden, output=name)
    model = b.model({name: ["batch", "sequence", HIDDEN]})
    with pytest.raises(RewriteError, match=rf"'{name}' has the name of an input .* or choose the padded interface"):
        rewrite(model)
    assert rewrite(model, interface="padded", strict=True).report.complete


def with_words() -> ModelProto:
    """Only the rows of words' first tokens, as in GLiNER's token level: as many as a mask marks."""
    b, hidden = one_layer()
    marked = b.op("Transpose", b.op("NonZero", "words_mask"), perm=[1, 0])
    return with_output(b.op("GatherND", hidden, marked), b, ["words", HIDDEN], "words_mask")


def test_sizes_that_follow_from_values_are_named_with_the_rows_to_keep(tmp_path: Path) -> None:
    with pytest.raises(
        RewriteError, match=r"unknown sizes, which follow from the inputs' values, .* --outputs"
    ) as error:
        rewrite(with_words())
    save_model(with_words(), tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "cut.onnx")]
    assert main([*command, *advised_outputs(error.value)]) == 0
