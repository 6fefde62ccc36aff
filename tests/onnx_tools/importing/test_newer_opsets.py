# SPDX-License-Identifier: Apache-2.0
"""Graphs raised to a newer opset compute the same; what has no equivalent there is refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.importing.newer_opsets import raise_opset
from padfree.onnx_tools.operators import opset_of

from tests.onnx_tools.agreement import run

X = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)


def model(body: str, outputs: str, opset: int = 14) -> ModelProto:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> raised (float[B,4,6] x) => ({outputs})'
    return parser.parse_model(f"{head} {{ {body} }}")


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("y = ReduceMean<axes = [1, -1], keepdims = 0>(x)", "float[B] y"),
        ("y = ReduceMax<keepdims = 0>(x)", "float y"),
        ("y, z = Split<axis = 2>(x)", "float[B,4,3] y, float[B,4,3] z"),
        ("s = Softmax<axis = -1>(x) y = Transpose<perm = [0, 2, 1]>(s)", "float[B,6,4] y"),
        ("a = Cast<to = 10>(x) b = Cast<to = 1>(a) y = Relu(b)", "float[B,4,6] y"),
    ],
)
def test_it_computes_the_same(body: str, outputs: str) -> None:
    before = model(body, outputs)
    after = ModelProto()
    after.CopyFrom(before)
    raise_opset(after, 19)
    onnx.checker.check_model(after, full_check=True)
    assert opset_of(after) == 19
    for wanted, actual in zip(run(before, {"x": X}), run(after, {"x": X}), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_newer_models_stay_as_they_are() -> None:
    original = model("y = Relu(x)", "float[B,4,6] y", opset=21)
    before = original.SerializeToString()
    raise_opset(original, 19)
    assert original.SerializeToString() == before


def test_what_means_something_else_is_named() -> None:
    original = model("y = RoiAlign(x, rois, indices)", "float[R,4,1,1] y")
    original.graph.node[0].name = "crop"
    with pytest.raises(RewriteError, match=r"'crop' \(RoiAlign\) of opset 14 has no equal in opset 19, .* choose"):
        raise_opset(original, 19)
