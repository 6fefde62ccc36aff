# SPDX-License-Identifier: Apache-2.0
"""Outputs that are an input as it came, which TensorRT must not be left to copy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from padfree.builder.engine.network import for_parser
from padfree.builder.engine.pass_through import SAME_VALUES, compute_passed_through
from padfree.onnx_tools import rewrite

from tests.support.sequence_models import with_rows

VALUES = {
    TensorProto.INT64: np.asarray([-(2**63), -(2**31), -1, 0, 1, 2**63 - 1]),
    TensorProto.INT32: np.asarray([-(2**31), -1, 0, 1, 2**31 - 1], np.int32),
    TensorProto.FLOAT: np.asarray([-np.inf, -0.0, 0.0, 1.0, np.nextafter(1.0, 2.0), np.nan, np.inf], np.float32),
    TensorProto.FLOAT16: np.asarray([-np.inf, -0.0, 0.0, 1.0, 65504.0, np.nan, np.inf], np.float16),
    TensorProto.BOOL: np.asarray([True, False]),
}


def model_of(kind: int) -> ModelProto:
    """`same` is x, `column` is x as [B,1], `shared` is a second reader of the same Identity; `sum` is computed."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["made"]),
        helper.make_node("Identity", ["made"], ["column"]),
        helper.make_node("Identity", ["same"], ["shared"]),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in ("same", "column", "shared")]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    inputs = [helper.make_tensor_value_info("x", kind, ["batch"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", list(VALUES))
def test_values_stay_to_the_bit(kind: int) -> None:
    model = model_of(kind)
    compute_passed_through(model)
    found = ReferenceEvaluator(model).run(None, {"x": VALUES[kind]})
    for values in found:
        assert values.tobytes() == VALUES[kind].tobytes()


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_no_output_is_an_input_in_another_form(interface: str) -> None:
    model = for_parser(rewrite(with_rows(), interface=interface).model, 16)
    assert {value.name for value in model.graph.output} >= {"row_id_out"}
    assert not _only_moved(model)


def test_only_moved_outputs_are_found() -> None:
    """What the test above looks for is there before the step, and gone after it."""
    model = model_of(TensorProto.INT64)
    assert _only_moved(model) == ["same", "column", "shared"]
    compute_passed_through(model)
    assert not _only_moved(model)


def _only_moved(model: ModelProto) -> list[str]:
    producers = {output: node for node in model.graph.node for output in node.output}
    moved = []
    for value in model.graph.output:
        name = value.name
        while name in producers and producers[name].op_type in SAME_VALUES:
            name = producers[name].input[0]
        if name in {item.name for item in model.graph.input}:
            moved.append(value.name)
    return moved
