# SPDX-License-Identifier: Apache-2.0
"""Weights are bound to graphs that were exported without them; the results are those with weights as inputs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.builder.folders.bound_weights import Array, UnknownInputError, bind_weights

ROWS, INNER, WIDTH = 5, 192, 256  # 196 KB: a weight that stays outside of the message


def graph(perm: list[int] | None = None, *, also_read: bool = False) -> ModelProto:
    """y = x w^T + b, with the weights as inputs; with `also_read`, w is an output, too."""
    shapes = {"x": [ROWS, INNER], "w": [WIDTH, INNER], "b": [WIDTH]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    transposed = helper.make_node("Transpose", ["w"], ["wt"], **({} if perm is None else {"perm": perm}))
    nodes = [transposed, helper.make_node("MatMul", ["x", "wt"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    if also_read:
        nodes.append(helper.make_node("Identity", ["w"], ["again"]))
        outputs.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, None))
    result = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(result, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((WIDTH, INNER)).astype(np.float32),
        "b": rng.standard_normal(WIDTH).astype(np.float32),
        "unread": np.zeros(7, np.float32),
    }


@pytest.mark.parametrize("also_read", [False, True])
@pytest.mark.parametrize("perm", [None, [1, 0]])
def test_the_model_computes_what_the_graph_does(perm: list[int] | None, *, also_read: bool) -> None:
    values = weights()
    x = np.random.default_rng(1).standard_normal((ROWS, INNER)).astype(np.float32)
    content = graph(perm, also_read=also_read)
    wanted = ort.InferenceSession(content.SerializeToString()).run(None, {"x": x, "w": values["w"], "b": values["b"]})
    bound = bind_weights(content, ("x",), values)
    names = {tensor.name for tensor in bound.proto.graph.initializer}
    assert names == ({"wt", "b", "w"} if also_read else {"wt", "b"}), "what nobody reads is not there"
    assert "Transpose" not in {node.op_type for node in bound.proto.graph.node}
    actual = ort.InferenceSession(bound.whole().SerializeToString()).run(None, {"x": x})
    for a, b in zip(wanted, actual, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_what_is_not_transposed_is_the_array_itself() -> None:
    values = weights()
    bound = bind_weights(graph(also_read=True), ("x",), values)
    (tensor,) = (item for item in bound.proto.graph.initializer if item.name == "w")
    assert np.shares_memory(bound.array(tensor), values["w"])


def test_other_transposes_stay() -> None:
    assert "Transpose" in {node.op_type for node in bind_weights(graph([0, 1]), ("x",), weights()).proto.graph.node}


def test_an_input_that_is_no_weight_is_named() -> None:
    with pytest.raises(UnknownInputError, match="no weights: b"):
        bind_weights(graph(), ("x",), {"w": weights()["w"]})
