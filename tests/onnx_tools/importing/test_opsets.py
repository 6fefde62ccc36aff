# SPDX-License-Identifier: Apache-2.0
"""Old and new opsets: converted nodes give what onnxruntime gives for the original nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.importing.importing import canonical

from tests.support.exports import session

X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
WEIGHTS = {name: np.random.default_rng(1).random(3).astype(np.float32) + 0.5 for name in ("a", "b", "c", "d")}


def model_of(nodes: list[NodeProto], opset: int, kind: int = 1) -> ModelProto:
    """A model from x to y; the shape of y is not declared."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [
            *(numpy_helper.from_array(values, name) for name, values in WEIGHTS.items()),
            numpy_helper.from_array(np.asarray([[[[2]]], [[[1]]]], np.int64), "places"),
            numpy_helper.from_array(np.asarray(True), "yes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def node(op: str, inputs: str = "x", **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), ["y"], name="n", **attributes)


CASES: dict[str, tuple[NodeProto, tuple[int, ...]]] = {
    **{
        f"{op} {axis}": (node(op, **({} if axis is None else {"axis": axis})), (7, 9, 11, 12))
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (None, 0, 1, 2, 3)
    },
    "Softmax -1": (node("Softmax", axis=-1), (11, 12)),
    "Softmax -2": (node("Softmax", axis=-2), (11, 12)),
    "Squeeze": (node("Squeeze", "places"), (7, 11, 12)),
    "Squeeze axes": (node("Squeeze", "places", axes=[1, 2]), (7, 11, 12)),
    "Unsqueeze": (node("Unsqueeze", axes=[0, 2]), (7, 11, 12)),
    "ReduceSum": (node("ReduceSum"), (7, 11, 12)),
    "ReduceSum axes": (node("ReduceSum", axes=[1, 3], keepdims=0), (7, 11, 12)),
    "Split": (helper.make_node("Split", ["x"], ["y", "z"], name="n", axis=2), (7, 11, 12)),
    "Split sizes": (helper.make_node("Split", ["x"], ["z", "y"], name="n", axis=3, split=[1, 4]), (7, 11, 12)),
    "Clip": (node("Clip", min=-0.5, max=0.25), (7, 10)),
    "Clip max": (node("Clip", max=0.25), (7, 10)),
    "Clip inputs": (node("Clip", "x  "), (11, 12)),
    "Pad": (node("Pad", pads=[0, 1, 0, 2, 0, 0, 3, 0], value=2.5), (7, 10)),
    "Pad reflect": (node("Pad", pads=[0, 0, 1, 2, 0, 0, 2, 1], mode="reflect"), (7, 10)),
    "BatchNormalization": (node("BatchNormalization", "x a b c d", epsilon=0.1), (7, 8, 9, 11)),
    "Dropout": (node("Dropout", ratio=0.7), (7, 10, 11)),
    "Dropout inputs": (node("Dropout", "x"), (12, 13)),
    "Slice": (node("Slice", starts=[1, -2], ends=[3, 9], axes=[1, 3]), (7, 9)),
    "Slice all": (node("Slice", starts=[0, 1], ends=[1, 9]), (7, 9)),
    "TopK": (helper.make_node("TopK", ["x"], ["y", "i"], name="n", k=2, axis=2), (7, 9)),
    "Upsample": (node("Upsample", scales=[1.0, 1.0, 2.0, 1.5], mode="nearest"), (7, 8)),
    "Upsample linear": (node("Upsample", scales=[1.0, 1.0, 2.0, 3.0], mode="linear"), (7, 8)),
    "ReduceMean": (node("ReduceMean", axes=[1]), (7, 11)),
    "Gelu parts": (node("Erf"), (9, 11)),
    "ArgMax": (node("ArgMax", axis=1), (7, 11)),
    "Flatten": (node("Flatten", axis=2), (7, 9, 11)),
}
CONVERTED = [(name, opset) for name, (_, opsets) in CASES.items() for opset in opsets]


@pytest.mark.parametrize(("name", "opset"), CONVERTED, ids=[f"{name}, opset {opset}" for name, opset in CONVERTED])
def test_old_nodes(name: str, opset: int) -> None:
    kinds = {"ArgMax": TensorProto.INT64, "Squeeze": TensorProto.INT64, "Squeeze axes": TensorProto.INT64}
    model = model_of([CASES[name][0]], opset, kind=kinds.get(name, TensorProto.FLOAT))
    before = model.SerializeToString()
    converted = canonical(model)
    assert model.SerializeToString() == before
    assert {item.domain: item.version for item in converted.opset_import} == {"": 14}
    wanted, actual = (session(item).run(["y"], {"x": X})[0] for item in (model, converted))
    np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rank", ["known", "unknown"])
def test_softmax_over_the_last_axis_stays_one_node(rank: str) -> None:
    """If the rank is unknown, the flattened form is right, too."""
    model = model_of([helper.make_node("Softmax", ["x"], ["y"], axis=3)], 11)
    if rank == "unknown":
        model.graph.input[0].type.tensor_type.ClearField("shape")
    converted = canonical(model)
    operators = [item.op_type for item in converted.graph.node]
    assert operators == (["Softmax"] if rank == "known" else ["Shape", "Flatten", "Softmax", "Reshape"])
    wanted, actual = (session(item).run(["y"], {"x": X})[0] for item in (model, converted))
    np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-7)


def test_nodes_in_branches_and_functions_are_converted() -> None:
    inner = helper.make_node("Squeeze", ["wide"], ["z"], axes=[0])
    shapes = [helper.make_node("Unsqueeze", ["x"], ["wide"], axes=[0]), inner]
    branches = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)])
        for name, nodes, last in (
            ("then_branch", shapes, "z"),
            ("else_branch", [helper.make_node("Neg", ["x"], ["w"])], "w"),
        )
    }
    converted = canonical(model_of([helper.make_node("If", ["yes"], ["y"], **branches)], 11))
    np.testing.assert_array_equal(session(converted).run(["y"], {"x": X})[0], X)
    body = helper.make_function(
        "own", "F", ["x"], ["z"], shapes, [helper.make_opsetid("", 11), helper.make_opsetid("own", 1)]
    )
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="own")], 11)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(body)
    converted = canonical(model)
    assert not converted.functions
    np.testing.assert_array_equal(session(converted).run(["y"], {"x": X})[0], X)


@pytest.mark.parametrize("opset", [24, 25, 26, 27, 28])
def test_newer_opsets_whose_operators_mean_the_same(opset: int) -> None:
    rounding = {"round_mode": "up"} if opset > 24 else {}
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16, **rounding),
        helper.make_node("Cast", ["half"], ["single"], to=TensorProto.FLOAT),
        helper.make_node("Swish", ["single"], ["y"]),
    ]
    converted = canonical(model_of(nodes, opset))
    assert {item.domain: item.version for item in converted.opset_import} == {"": 23}
    exact = X.astype(np.float16).astype(np.float64)
    actual = session(converted).run(["y"], {"x": X})[0]
    np.testing.assert_allclose(actual, exact / (1 + np.exp(-exact)), rtol=1e-6)


@pytest.mark.parametrize(
    ("opset", "made", "reason"),
    [
        (6, node("Relu"), "opset is 6, allowed is 7 or more"),
        (26, node("CumProd", "x places"), r"node 'n' \(CumProd\) is one of opset 26 and has no equal in opset 23"),
        (24, node("Attention", "x x x     places"), r"\(Attention\) is one of opset 24"),
        (8, node("BatchNormalization", "x a b c d", spatial=0), "statistics for every position"),
        (28, node("Cast", to=16, round_mode="down"), r"\(Cast\) is one of opset 28"),
    ],
)
def test_nodes_are_refused_with_a_reason(opset: int, made: NodeProto, reason: str) -> None:
    if made.op_type == "Attention":
        made.input[3:] = ["", "", "", "places"]
    with pytest.raises(RewriteError, match=reason):
        canonical(model_of([made], opset))


def test_opsets_that_contradict_each_other() -> None:
    model = model_of([node("Relu")], 17)
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert [(item.domain, item.version) for item in canonical(model).opset_import] == [("", 17)]
    model.opset_import[1].version = 18
    with pytest.raises(RewriteError, match="in two versions, 17 and 18"):
        canonical(model)
