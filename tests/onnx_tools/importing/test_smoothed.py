# SPDX-License-Identifier: Apache-2.0
"""Factors in front of GEMMs: which ones go into the weights, and which are something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized.smoothing import fold_scales

from tests.onnx_tools.agreement import run

WIDTH, WIDER = 8, 600  # large enough that the weight [8,600] is kept outside of messages
X = {"x": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)}


def model(*nodes: Any, outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    """A model with the factors f [8], the weights w [8,600] and its transpose t, and x [n,8]."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((WIDTH, WIDER)).astype(np.float32)
    held = {"f": np.linspace(0.5, 2, WIDTH, dtype=np.float32), "w": weight, "t": np.ascontiguousarray(weight.T)}
    held["f3"] = held["f"].reshape(1, 1, WIDTH)
    held["one"] = np.array(2, np.float32)
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [result], name=result, **options) for op, inputs, result, options in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(values, name) for name, values in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SMOOTH = ("Mul", ["x", "f"], "m", {})
MATMUL = ("MatMul", ["m", "w"], "y", {})


@pytest.mark.parametrize(
    "nodes",
    [
        [SMOOTH, MATMUL],
        [("Mul", ["f", "x"], "m", {}), MATMUL],
        [SMOOTH, ("Transpose", ["t"], "w2", {"perm": [1, 0]}), ("MatMul", ["m", "w2"], "y", {})],
        [("Identity", ["f"], "f2", {}), ("Mul", ["x", "f2"], "m", {}), MATMUL],
        [SMOOTH, MATMUL, ("MatMul", ["m", "w"], "z", {})],
        [SMOOTH, MATMUL, ("MatMul", ["x", "w"], "z", {})],  # the same weight without factors
    ],
)
def test_factors_go_into_weights(nodes: list[Any]) -> None:
    original = model(*nodes, outputs=("y", "z") if nodes[-1][2] == "z" else ("y",))
    actual = fold_scales(Model.of(original)).whole()
    assert "Mul" not in {node.op_type for node in actual.graph.node}
    for a, b in zip(run(actual, X), run(original, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([SMOOTH, MATMUL, ("Relu", ["m"], "z", {})], ("y", "z")),  # another node reads it
        ([SMOOTH, MATMUL], ("y", "m")),  # it is an output
        ([("Mul", ["x", "one"], "m", {}), MATMUL], ("y",)),
        ([("Mul", ["x", "f3"], "m", {}), MATMUL], ("y",)),  # the result has one more axis
        ([SMOOTH, MATMUL, ("Transpose", ["m"], "turned", {}), ("MatMul", ["t", "turned"], "z", {})], ("y", "z")),
        # The weight of a norm written out in single operators.
        ([("Sqrt", ["one"], "s", {}), ("Div", ["x", "s"], "d", {}), ("Mul", ["d", "f"], "m", {}), MATMUL], ("y",)),
        (
            [
                *(("Reciprocal", ["one"], "s", {}), ("Mul", ["x", "s"], "d", {})),
                *(("Cast", ["d"], "c", {"to": TensorProto.FLOAT}), ("Mul", ["c", "f"], "m", {}), MATMUL),
            ],
            ("y",),
        ),
    ],
)
def test_other_factors_stay(nodes: list[Any], outputs: tuple[str, ...]) -> None:
    original = Model.of(model(*nodes, outputs=outputs))
    assert fold_scales(original) is original
