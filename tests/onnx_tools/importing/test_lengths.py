# SPDX-License-Identifier: Apache-2.0
"""Lengths of sequences instead of a mask: MXNet's valid_length, [B] or [B,1], of any type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.builder.cli import main
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session

from tests.onnx_tools.agreement import INTERFACES, with_interfaces_in_turn
from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder
from tests.support.exports import metadata_of

INT64, INT32, FLOAT = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
FORMS = ("less", "greater", "masked", "behind", "masked behind")


def model_of(form: str = "less", kind: int = INT64, *, column: bool = False, mean: bool = False) -> ModelProto:
    """An encoder that attends to keys at positions below `valid_length`; with `mean` its output is a mean."""
    b = EncoderBuilder()
    x = b.embedding()
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    first = 1 if "behind" in form else 0
    ends = (b.constant(first, np.int64), b.op("Add", length, b.constant(first, np.int64)))
    steps = b.op("Cast", b.op("Range", *ends, b.constant(1, np.int64)), to=kind)
    counts = "valid_length" if column else b.op("Unsqueeze", "valid_length", b.axes(1))
    steps = b.op("Unsqueeze", steps, b.axes(0))
    if form == "less":
        kept = b.op("Less", steps, counts)
    elif form == "greater":
        kept = b.op("Greater", counts, steps)
    elif form == "behind":
        kept = b.op("LessOrEqual", steps, counts)
    else:
        kept = b.op("Not", b.op("GreaterOrEqual" if form == "masked" else "Greater", steps, counts))
    mask = b.op("Where", b.op("Unsqueeze", kept, b.axes(1, 2)), b.constant(0.0), b.constant(-1e9))
    x, shape = b.layer(x, mask), ["batch", "sequence", HIDDEN]
    if mean:
        own = b.op("Where", b.op("Unsqueeze", kept, b.axes(2)), x, b.constant(0.0))
        whole = b.op("Cast", "valid_length" if column else b.op("Unsqueeze", "valid_length", b.axes(1)), to=FLOAT)
        x, shape = b.op("Div", b.op("ReduceSum", own, b.axes(1), keepdims=0), whole), ["batch", HIDDEN]
    b.op("Identity", x, output="y")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        b.nodes,
        "encoder",
        [
            value("input_ids", INT64, ["batch", "sequence"]),
            value("valid_length", kind, ["batch", 1] if column else ["batch"]),
        ],
        [value("y", FLOAT, shape)],
        b.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", FORMS)
def test_comparisons_are_masks(form: str, interface: str) -> None:
    result = rewrite(model_of(form), interface=interface, strict=True)
    metadata = metadata_of(result)
    assert metadata["mask"]["input"] == "valid_length"
    assert metadata["mask"]["lengths"] is True
    roles = {item["name"]: item["role"] for item in metadata["inputs"]}
    lengths = "seq_lens" if interface == "packed" else "valid_length"
    assert roles == {"input_ids": "tokens", lengths: "seq_lens"}


@pytest.mark.parametrize(("column", "interface"), with_interfaces_in_turn([False, True]))
@pytest.mark.parametrize("kind", [INT64, INT32, FLOAT])
@pytest.mark.parametrize("mean", [False, True])
def test_sessions_give_what_the_original_gives(
    kind: int, column: bool, mean: bool, interface: str, tmp_path: Path
) -> None:
    model = model_of(kind=kind, column=column, mean=mean)
    save_model(rewrite(model, interface=interface, strict=True).model, tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    lengths = (5, 1, 9, 2)
    ids = [rng.integers(0, VOCABULARY, length) for length in lengths]
    grid = np.asarray([np.pad(row, (0, 9 - len(row)), constant_values=7) for row in ids])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    counts = np.asarray(lengths, dtype).reshape((4, 1) if column else (4,))
    session = ort.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"input_ids": grid, "valid_length": counts})
    with Session(tmp_path / "model.onnx") as opened:
        actual = opened.run(ids)["y"]
    for row, one, length in zip(wanted, actual, lengths, strict=True):
        np.testing.assert_allclose(one, row if mean else row[:length], atol=2e-5)


def test_lengths_beside_a_mask_are_values_of_sequences() -> None:
    """Where attention has a mask of its own, an input that is compared with positions is not a mask."""
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    steps = b.op("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))
    early = b.op("Less", b.op("Unsqueeze", steps, b.axes(0)), b.op("Unsqueeze", "instruction", b.axes(1)))
    b.op("Where", b.op("Unsqueeze", early, b.axes(2)), b.constant(0.0), x, output="y")
    value = helper.make_tensor_value_info
    dims = ["batch", "sequence"]
    inputs = [value(name, INT64, dims) for name in ("input_ids", "attention_mask")]
    graph = helper.make_graph(
        b.nodes, "encoder", [*inputs, value("instruction", INT64, ["batch"])], [value("y", FLOAT, [*dims, HIDDEN])],
        b.constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for interface in INTERFACES:
        metadata = metadata_of(rewrite(model, interface=interface))
        assert metadata["mask"]["input"] == "attention_mask"
        assert {item["name"]: item["role"] for item in metadata["inputs"]}["instruction"] == "per_sequence"


@pytest.mark.parametrize("interface", INTERFACES)
def test_compare_makes_lengths_of_its_batches(interface: str, tmp_path: Path) -> None:
    original, packed = tmp_path / "original.onnx", tmp_path / "packed.onnx"
    save_model(model_of(column=True), original)
    save_model(rewrite(str(original), interface=interface).model, packed)
    assert main(["compare", str(original), str(packed)]) == 0
