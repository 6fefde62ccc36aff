# SPDX-License-Identifier: Apache-2.0
"""Convolutions along the sequence become products: the same numbers, at lengths of one and more."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.passes.expansion.convolutions import MOST_TAPS, expand_batch_norms, expand_convolutions

from tests.onnx_tools.agreement import run

CHANNELS, FEATURES = 4, 6


def _model(
    taps: int,
    *,
    transposed: bool = True,
    bias: bool = True,
    groups: int = 1,
    zeros: tuple[int, int] | None = None,
    filler: float = 0.0,
    first: int | None = None,
    **attributes: object,
) -> ModelProto:
    """[B,S,C] -> Transpose -> Conv -> Transpose, or [B,C,S] -> Conv; first a Pad may put `zeros` around the rows.

    With `first`, a Slice takes as many results as there are rows, from this one on.
    """
    rng = np.random.default_rng(0)
    features = CHANNELS if groups == CHANNELS else FEATURES
    weights = [
        numpy_helper.from_array(rng.standard_normal((features, CHANNELS // groups, taps)).astype(np.float32), "w")
    ]
    if bias:
        weights.append(numpy_helper.from_array(rng.standard_normal(features).astype(np.float32), "b"))
    shape = ["B", "S", CHANNELS] if transposed else ["B", CHANNELS, "S"]
    x = "t" if transposed else "x"
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])] if transposed else []
    if zeros is not None:
        counts = np.array([0, 0, zeros[0], 0, 0, zeros[1]])
        weights += [numpy_helper.from_array(counts, "n"), numpy_helper.from_array(np.float32(filler), "z")]
        nodes.append(helper.make_node("Pad", [x, "n", "z"], ["more"]))
        x = "more"
    names = [x, "w", "b"] if bias else [x, "w"]
    result = "c" if transposed else "y"
    nodes.append(helper.make_node("Conv", names, [result if first is None else "all"], group=groups, **attributes))
    if first is not None:
        weights += [numpy_helper.from_array(np.array([value]), name) for name, value in (("from", first), ("axis", 2))]
        axis = 1 if transposed else 2
        nodes += [
            helper.make_node("Shape", ["x"], ["length"], start=axis, end=axis + 1),
            helper.make_node("Add", ["length", "from"], ["to"]),
            helper.make_node("Slice", ["all", "from", "to", "axis"], [result]),
        ]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 1]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SAME = (
    (3, {"pads": [1, 1]}), (2, {"pads": [0, 1]}), (2, {"pads": [1, 0]}), (5, {"pads": [4, 0]}), (4, {"pads": [1, 2]}),
    (3, {"pads": [2, 2], "dilations": [2]}), (2, {"auto_pad": "SAME_UPPER"}), (4, {"auto_pad": "SAME_LOWER"}),
    (MOST_TAPS, {"pads": [3, 4]}), (1, {}), (1, {"pads": [0, 0]}), (1, {"auto_pad": "VALID"}),
)  # fmt: skip
OTHERS = (
    (3, {"zeros": (2, 0)}), (4, {"zeros": (2, 0), "pads": [0, 1]}), (3, {"zeros": (1, 1), "auto_pad": "VALID"}),
    (3, {"pads": [1, 1], "groups": CHANNELS}), (4, {"zeros": (3, 0), "groups": CHANNELS}), (1, {"groups": CHANNELS}),
)  # fmt: skip
"""Some have zeros padded first, some have weights per channel."""
CUT = (
    (3, {"pads": [2, 2], "first": 0}), (4, {"pads": [3, 3], "first": 0, "groups": CHANNELS}),
    (3, {"pads": [2, 2], "first": 1}), (3, {"pads": [2, 2], "first": 2}), (2, {"zeros": (1, 1), "first": 0}),
    (3, {"pads": [4, 4], "dilations": [2], "first": 0}), (1, {"pads": [0, 2], "first": 0}),
)  # fmt: skip
"""More results than rows, of which the first ones are taken, as causal convolutions do, or others."""


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("taps", "attributes"), SAME + OTHERS + CUT)
def test_convolutions_become_matmuls(taps: int, attributes: dict[str, object], transposed: bool) -> None:
    model = _model(taps, transposed=transposed, bias=taps != 2, **attributes)
    graph = gs.import_onnx(model)
    assert expand_convolutions(graph, analyse(graph))
    tidy(graph)
    kinds = [node.op for node in graph.nodes]
    assert "Conv" not in kinds
    assert kinds.count("Transpose") == (0 if transposed else 2)
    for length in (1, 2, 3, 9):
        shape = (2, length, CHANNELS) if transposed else (2, CHANNELS, length)
        x = np.random.default_rng(length).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(
            run(gs.export_onnx(graph), {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("taps", "attributes"),
    [
        (MOST_TAPS + 1, {"pads": [4, 4]}),
        (3, {"pads": [1, 1], "strides": [2]}),
        (3, {"pads": [1, 1], "groups": 2}),
        (1, {"groups": 2}),
        (1, {"strides": [2]}),
        (1, {"pads": [1, 0]}),
        (3, {}),  # the result is shorter
        (3, {"pads": [3, -1]}),
        (3, {"zeros": (2, 1)}),  # the result is longer
        (3, {"zeros": (2, 0), "filler": 1.0}),
        (3, {"zeros": (1, 0), "auto_pad": "SAME_UPPER"}),
        (3, {"pads": [1, 4], "first": 3}),  # the rows after those that a token's result needs
        (3, {"pads": [4, 1], "first": 0}),  # those before them
    ],
)
def test_what_is_no_product_of_neighbours_stays(taps: int, attributes: dict[str, object]) -> None:
    graph = gs.import_onnx(_model(taps, **attributes))
    assert not expand_convolutions(graph, analyse(graph))
    assert [node.op for node in graph.nodes].count("Conv") == 1


@pytest.mark.parametrize("shape", [("B", CHANNELS, "S"), ("B", CHANNELS), ("B", CHANNELS, "S", 3)])
def test_batch_norms_become_a_product_and_a_sum(shape: tuple[object, ...]) -> None:
    rng = np.random.default_rng(0)
    held = {name: rng.uniform(0.5, 2, CHANNELS).astype(np.float32) for name in ("scale", "shift", "mean", "variance")}
    graph = helper.make_graph(
        [helper.make_node("BatchNormalization", ["x", *held], ["y"], epsilon=1e-3)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(values, name) for name, values in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    written = gs.import_onnx(model)
    assert expand_batch_norms(written, analyse(written))
    tidy(written)
    assert [node.op for node in written.nodes] == ["Mul", "Add"]
    x = rng.standard_normal([{"B": 2, "S": 5}.get(size, size) for size in shape]).astype(np.float32)
    np.testing.assert_allclose(run(gs.export_onnx(written), {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5, atol=1e-5)
