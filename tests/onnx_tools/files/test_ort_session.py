# SPDX-License-Identifier: Apache-2.0
"""onnxruntime computes what the graph says: those of its optimizers that are known to be wrong are disabled."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session

CHANNELS, LENGTH = 16, 9


def test_a_transposed_tensor_times_a_vector() -> None:
    rng = np.random.default_rng(0)
    vector, x = rng.standard_normal(CHANNELS, np.float32), rng.standard_normal((4, CHANNELS, LENGTH), np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["moved"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["moved", "vector"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "scores",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", CHANNELS, "S"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "S"])],
        [numpy_helper.from_array(vector, "vector")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = open_session(Model(proto)).run(None, {"x": x})
    np.testing.assert_allclose(y, x.transpose(0, 2, 1) @ vector, rtol=1e-5, atol=1e-5)
