# SPDX-License-Identifier: Apache-2.0
"""A norm in half precision gives outputs in float32 by itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.operators import check_nodes, node_attributes, padfree_nodes, set_attribute, with_functions

from tests.support.messages import for_parser

from .built_models import bert, of, run

UNROUNDED = 1e-3
"""The tolerance for a pooler's results: onnxruntime does not round values that go from float32 to fp16 and back."""


def without(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    model.graph.output.remove(next(value for value in model.graph.output if value.name == output))
    return model


@pytest.mark.parametrize("pooler", [True, False])
def test_the_last_norm_gives_float32_and_what_else_is_read(pooler: bool) -> None:
    original = bert() if pooler else without(bert(), "pooler_output")
    model = rewrite(original, precision="fp16").model
    rewritten = for_parser(model, 512)
    check_nodes(rewritten)
    *others, last = of(rewritten, "PadfreeLayerNorm")
    assert node_attributes(last)["results"] == "fp32"
    assert node_attributes(last)["has_first"] == int(pooler)
    assert {node_attributes(node)["results"] for node in others} <= {"act"}
    assert last.output[0] == "last_hidden_state"
    assert not any(node.op_type == "PadfreePool" for node in padfree_nodes(rewritten.graph))
    assert not any(node.op_type == "Cast" and "last_hidden_state" in node.output for node in rewritten.graph.node)
    rounded, rows = run(model), run(with_functions(rewritten, "fp16"))
    np.testing.assert_array_equal(rows[0].astype(np.float16), rounded[0].astype(np.float16))
    assert (rows[0] != rounded[0]).any()
    for a, b in zip(rows[1:], rounded[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=UNROUNDED)


@pytest.mark.parametrize("change", ["mean", "normalize", "late offsets", "also an output"])
def test_rows_in_half_precision_stay_where_others_read_them(change: str) -> None:
    model = rewrite(bert(), precision="fp16").model
    pool = next(node for node in padfree_nodes(model.graph) if node.op_type == "PadfreePool")
    if change == "mean":
        set_attribute(pool, "mode", "mean")
    elif change == "normalize":
        set_attribute(pool, "normalize", 1)
    elif change == "late offsets":
        offsets = onnx.helper.make_node("Abs", [pool.input[1]], ["late"])
        pool.input[1] = "late"
        model.graph.node.insert(list(model.graph.node).index(pool), offsets)
    else:
        model.graph.output.append(onnx.helper.make_tensor_value_info(pool.input[0], onnx.TensorProto.FLOAT16, None))
    rewritten = for_parser(model, 512)
    check_nodes(rewritten)
    last = of(rewritten, "PadfreeLayerNorm")[-1]
    results = {name: node_attributes(last)[name] for name in ("results", "has_first")}
    assert results == {"results": "act_fp32", "has_first": int(change == "also an output")}


@pytest.mark.parametrize("options", [{"precision": "fp32"}, {"precision": "fp16", "interface": "padded"}], ids=str)
def test_others_are_left_alone(options: dict[str, str]) -> None:
    """In fp32 nothing is cast, and in the padded interface the casts are of slots."""
    rewritten = for_parser(rewrite(bert(), **options).model, 512)  # type: ignore[arg-type]
    assert {node_attributes(node)["results"] for node in of(rewritten, "PadfreeLayerNorm")} == {"act"}
