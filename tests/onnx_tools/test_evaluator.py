# SPDX-License-Identifier: Apache-2.0
"""The evaluator, which reuses nodes' runners for other models, gives the same as onnx.reference with new ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_tools.agreement import feeds_for, masks
from tests.onnx_tools.evaluator import evaluate
from tests.onnx_tools.random_models.random_graphs import RandomGraph
from tests.onnx_tools.random_models.random_search import case
from tests.support.encoder import HIDDEN, one_layer, with_output


@pytest.mark.parametrize("number", range(12))
def test_it_gives_what_onnx_gives(number: int) -> None:
    steps, outputs, pooling, _ = case(5, number)
    graph = RandomGraph()
    graph.run(steps)
    model = graph.finish(outputs, pooling)
    feeds = feeds_for(model, masks("padded")["holes"], 20)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, feeds)
    for actual, expected in zip(evaluate(model, feeds), wanted, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_attributes_opsets_and_left_out_inputs_tell_nodes_apart() -> None:
    def result(opset: int, **attributes: Any) -> np.ndarray:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        nodes = [helper.make_node("Softmax", ["x"], ["y"], **attributes)]
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=8)
        return evaluate(model, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})[0]

    assert np.allclose(result(17, axis=1).sum(1), 1)
    assert np.allclose(result(17, axis=0).sum(0), 1)
    assert np.allclose(result(17).sum(1), 1)

    def clip(low: str, high: str) -> np.ndarray:
        builder, x = one_layer()
        limits = {"": "", "low": builder.constant(-0.1), "high": builder.constant(0.1)}
        model = with_output(builder.op("Clip", x, limits[low], limits[high]), builder, ["batch", "sequence", HIDDEN])
        return evaluate(model, feeds_for(model, masks("padded")["full"], 20))[0]

    below, above = clip("low", ""), clip("", "high")
    assert below.min() == np.float32(-0.1)
    assert below.max() > 0.1
    assert above.max() == np.float32(0.1)
    assert above.min() < -0.1


def test_functions_whose_bodies_follow_from_types_run() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    graph = helper.make_graph([helper.make_node("Gelu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (actual,) = evaluate(model, {"x": np.asarray([-1, 0, 1], np.float32)})
    np.testing.assert_allclose(actual, [-0.15865525, 0, 0.84134475], rtol=1e-6)
