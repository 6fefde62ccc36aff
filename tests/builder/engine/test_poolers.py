# SPDX-License-Identifier: Apache-2.0
"""The last norm also gives the first tokens' rows, for poolers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.operators import check_nodes, node_attributes, with_functions

from tests.support.messages import for_parser

from .built_models import bert, of, run

SEQ_LENS = (3, 9, 1, 0)
UNROUNDED = 2e-3
"""The tolerance for results that are no longer rounded to fp16 in between."""


def rewrite_model() -> onnx.ModelProto:
    return rewrite(bert(), precision="fp16").model


def last_norm(model: onnx.ModelProto) -> onnx.NodeProto:
    return of(model, "PadfreeLayerNorm")[-1]


def unfuse(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a last norm that adds nothing, as after a GEMM that adds: Add nodes before it do."""
    norm = last_norm(model)
    names = [name for name in ("bias", "residual") if node_attributes(norm)[f"has_{name}"]]
    sums, x = [], norm.input[0]
    for index, name in enumerate(names):
        sums.append(helper.make_node("Add", [x, norm.input[1 + index]], [f"sum_with_{name}"]))
        x = sums[-1].output[0]
    kept = list(norm.input[1 + len(names) :])
    for name in names:
        next(item for item in norm.attribute if item.name == f"has_{name}").i = 0
    norm.input[:] = [x, *kept]
    at = list(model.graph.node).index(norm)
    for node in reversed(sums):
        model.graph.node.insert(at, node)
    return model


def test_the_last_norm_makes_the_pooler() -> None:
    model = unfuse(rewrite_model())
    result = for_parser(model, 512)
    check_nodes(result)
    onnx.checker.check_model(with_functions(result, "fp16"))
    norm = last_norm(result)
    assert list(norm.output) == ["last_hidden_state", "pooler_output"]
    assert [node_attributes(norm)[name] for name in ("has_pooler", "early_lengths")] == [1, 1]
    assert not {"Gemm", "Tanh", "PadfreePool"} & {node.op_type for node in result.graph.node}
    results = (run(with_functions(item, "fp16"), SEQ_LENS) for item in (result, model))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=UNROUNDED)


def _of(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op)


CHANGES = {
    "a residual": lambda model: model,
    "another activation": lambda model: setattr(_of(unfuse(model), "Tanh"), "op_type", "Sigmoid"),
    "a second reader": lambda model: unfuse(model).graph.node.append(
        helper.make_node("Neg", [_of(model, "Tanh").input[0]], ["unread"])
    ),
    "a factor": lambda model: _of(unfuse(model), "Gemm").attribute.append(helper.make_attribute("alpha", 0.5)),
    "the other way round": lambda model: setattr(_of(unfuse(model), "Gemm").attribute[0], "i", 0),
    "no bias": lambda model: _of(unfuse(model), "Gemm").input.pop(),
    "another type": lambda model: setattr(
        next(
            attribute
            for node in unfuse(model).graph.node
            if node.op_type == "Cast" and node.output[0] == "pooler_output"
            for attribute in node.attribute
        ),
        "i",
        onnx.TensorProto.DOUBLE,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_others_keep_their_gemms(change: str) -> None:
    model = rewrite_model()
    CHANGES[change](model)
    result = for_parser(model, 512)
    check_nodes(result)
    attributes = node_attributes(last_norm(result))
    assert (attributes["has_first"], attributes["has_pooler"]) == (1, 0)
    assert any(node.op_type == "Gemm" for node in result.graph.node)
