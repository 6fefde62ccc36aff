# SPDX-License-Identifier: Apache-2.0
"""Inputs [B,S,N] with several numbers per token, such as LayoutLM's boxes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES
from tests.support.exports import assert_right, inputs_of, load, metadata_of

NAMES = ("layoutlm_torchscript", "layoutlm_dynamo")


def boxes(model: ModelProto) -> ValueInfoProto:
    return next(value for value in model.graph.input if value.name == "bbox")


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_token_inputs(name: str, interface: str) -> None:
    """The order of the inputs does not matter."""
    model = load(name)
    model.graph.input.sort(key=lambda value: value.name != "bbox")
    result = assert_right(model, inputs_of(name), interface, strict=True)
    results = {item["name"]: item for item in metadata_of(result)["inputs"]}
    assert (results["bbox"]["role"], results["bbox"]["limit"], results["bbox"]["width"]) == ("tokens", 64, 4)
    assert "width" not in results["input_ids"]
    (value,) = [item for item in result.model.graph.input if item.name == "bbox"]
    sizes = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    assert sizes == (["T", 4] if interface == "packed" else ["B", "S", 4])


def _of_any_number(model: ModelProto) -> None:
    boxes(model).type.tensor_type.shape.dim[2].dim_param = "numbers"


def _of_doubles(model: ModelProto) -> None:
    boxes(model).type.tensor_type.elem_type = TensorProto.DOUBLE


def _of_fixed_sizes(model: ModelProto) -> None:
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (1, 7), strict=False):
            dim.dim_value = size


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_of_any_number, r"'bbox' is INT64 \[batch, sequence, numbers\]; every input must be"),
        (_of_doubles, r"'bbox' is DOUBLE \[batch, sequence, 4\]; every input must be"),
        (_of_fixed_sizes, "'bbox' has several numbers a token, and the inputs fix sizes"),
    ],
)
def test_others_are_refused(change: Callable[[ModelProto], None], reason: str, interface: str) -> None:
    model = load(NAMES[0])
    change(model)
    with pytest.raises(RewriteError, match=reason):
        rewrite(model, interface=interface)


def test_boxes_are_no_mask() -> None:
    with pytest.raises(RewriteError, match=r"mask 'bbox' is no input \[batch, sequence\]"):
        rewrite(load(NAMES[0]), mask="bbox")
