# SPDX-License-Identifier: Apache-2.0
"""Where axes of a node's first input are in its result, compared with what ONNX's reference implementation computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from padfree.onnx_tools.analysis.symbolic import analyse

Array = npt.NDArray[Any]

SHAPE = (2, 3, 4)
FLOATS = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)


def whole(*numbers: int) -> Array:
    return np.asarray(numbers, np.int64)


CASES: list[tuple[str, dict[str, Any], list[Array], tuple[int | None, ...]]] = [
    ("Add", {}, [np.ones(4, np.float32)], (0, 1, 2)),
    ("Add", {}, [np.ones((5, 1, 1, 1), np.float32)], (1, 2, 3)),
    ("Identity", {}, [], (0, 1, 2)),
    ("Transpose", {}, [], (2, 1, 0)),
    ("Transpose", {"perm": [1, 2, 0]}, [], (2, 0, 1)),
    ("Softmax", {"axis": 1}, [], (0, None, 2)),
    ("LayerNormalization", {"axis": 1}, [np.ones((3, 4), np.float32)], (0, None, None)),
    ("ReduceSum", {}, [whole(1)], (0, None, 2)),
    ("ReduceSum", {"keepdims": 0}, [whole(0, 1)], (None, None, 0)),
    ("ReduceMax", {"keepdims": 0}, [whole(1)], (0, None, 1)),
    ("ReduceSum", {}, [], ()),
    ("Unsqueeze", {}, [whole(0, -1)], (1, 2, 3)),
    ("Reshape", {}, [whole(2, 3, 2, 2)], (0, 1, None)),
    ("Reshape", {}, [whole(6, 4)], (None, None, 1)),
    ("Reshape", {}, [whole(3, 2, 4)], (None, None, 2)),
    ("Flatten", {"axis": 2}, [], (None, None, 1)),
    ("Expand", {}, [whole(5, 1, 3, 1)], (1, 2, 3)),
    ("Tile", {}, [whole(1, 2, 1)], (0, None, 2)),
    ("Slice", {}, [whole(1), whole(3), whole(2)], (0, 1, None)),
    ("Split", {"axis": -1, "num_outputs": 2}, [], (0, 1, None)),
    ("Concat", {"axis": 1}, [np.ones(SHAPE, np.float32)], (0, None, 2)),
    ("Gather", {"axis": 1}, [whole(2, 0)], (0, None, 2)),
    ("Gather", {"axis": 1}, [np.asarray(1)], (0, None, 1)),
    ("Gather", {"axis": 1}, [np.asarray([[0, 1], [2, 2]])], (0, None, 3)),
    ("MatMul", {}, [FLOATS], (0, 1, None)),
    ("MatMul", {}, [FLOATS[:, 0]], (0, 1, None)),
    ("MatMul", {}, [np.stack([[FLOATS, FLOATS]] * 5)], ()),
    ("QuantizeLinear", {"axis": 2}, [np.arange(1, 5, dtype=np.float32)], (0, 1, None)),
    ("CumSum", {}, [np.asarray(1)], (0, None, 2)),
    ("Einsum", {"equation": "abc->cab"}, [], ()),
]


def model_of(op: str, attributes: dict[str, Any], rest: list[Array]) -> ModelProto:
    names = [f"rest_{position}" for position in range(len(rest))]
    node = helper.make_node(op, ["x", *names], ["y", "z"] if op == "Split" else ["y"], **attributes)
    constants = [numpy_helper.from_array(array, name) for array, name in zip(rest, names, strict=True)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    kind = TensorProto.UINT8 if op == "QuantizeLinear" else TensorProto.FLOAT
    graph = helper.make_graph([node], "graph", [x], [helper.make_tensor_value_info("y", kind, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("op", "attributes", "rest", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_axes(op: str, attributes: dict[str, Any], rest: list[Array], expected: tuple[int | None, ...]) -> None:
    """Slices in another order along an axis that is kept give results in that order; along others they do not."""
    model = model_of(op, attributes, rest)
    graph = gs.import_onnx(model)
    axes = analyse(graph).axes_in_result(graph.nodes[0])
    assert axes == expected
    run, x = ReferenceEvaluator(model), np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (before,) = run.run(None, {"x": x})
    for axis, place in enumerate(axes):
        order = np.roll(np.arange(SHAPE[axis]), 1)
        (after,) = run.run(None, {"x": x.take(order, axis)})
        if place is not None:
            np.testing.assert_allclose(after, before.take(order, place), rtol=1e-5)
        else:
            assert not any(
                before.shape[other] == SHAPE[axis] and np.array_equal(after, before.take(order, other))
                for other in range(before.ndim)
            )
