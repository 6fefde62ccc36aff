# SPDX-License-Identifier: Apache-2.0
"""The padded peer: what is read from an original model, and its conversion to fp16."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder import BuildError
from padfree.builder.peers.padded_engine import padded_metadata, to_fp16
from padfree.runtime.plan_files import parse_metadata


def original(*, mask: str = "attention_mask", kind: int = TensorProto.INT64) -> onnx.ModelProto:
    grid = ["batch", "sequence"]
    table = numpy_helper.from_array(np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4), "table")
    axis = numpy_helper.from_array(np.array([1]), "axis")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
        helper.make_node("ReduceSum", ["hidden", "axis"], ["pooled"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "original",
        [helper.make_tensor_value_info(name, kind, grid) for name in ("input_ids", mask)],
        [
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*grid, 4]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", 4]),
        ],
        [table, axis],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_roles_and_layouts_are_read_off_the_graph() -> None:
    metadata = parse_metadata(padded_metadata(original()), "original")
    assert [(item.name, item.role, item.dtype) for item in metadata.inputs] == [
        ("input_ids", "tokens", "int64"),
        ("attention_mask", "mask", "int64"),
    ]
    assert [(item.name, item.layout, item.shape) for item in metadata.outputs] == [
        ("hidden", "padded", (None, None, 4)),
        ("pooled", "per_sequence", (None, 4)),
    ]


def test_an_embedding_whose_size_the_exporter_did_not_know_has_one_row_a_sequence() -> None:
    model = original()
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_param = "ReduceSumpooled_dim_1"
    metadata = parse_metadata(padded_metadata(model), "original")
    assert [item.layout for item in metadata.outputs] == ["padded", "per_sequence"]


def test_models_without_a_mask_are_refused() -> None:
    with pytest.raises(BuildError, match="no mask input"):
        padded_metadata(original(mask="token_type_ids"))


def test_inputs_that_are_no_integers_are_refused() -> None:
    with pytest.raises(BuildError, match="input 'input_ids' is float32 of rank 2, allowed: integer grids"):
        padded_metadata(original(kind=TensorProto.FLOAT))


def test_fp16_keeps_the_interface_and_nearly_the_numbers() -> None:
    model = original()
    half = to_fp16(model)
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT
    assert half.graph.initializer[0].data_type == TensorProto.FLOAT16
    feeds = {"input_ids": np.array([[1, 9]]), "attention_mask": np.ones((1, 2), dtype=np.int64)}
    outputs = [
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for each in (model, half)
    ]
    for expected, result in zip(*outputs, strict=True):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, atol=2e-3)  # two fp16 roundings of values up to 1
