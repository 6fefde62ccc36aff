# SPDX-License-Identifier: Apache-2.0
"""Einsum is written out as products with the same results. What is packed then: test_tokens.py."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.passes.expansion.einsum import expand_einsums

from tests.onnx_tools.agreement import run

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}
EQUATIONS = (
    "ab,bc->ac", "ab,cb->ac", "ab,bc", "abc,abd->acd", "abc,cd->abd", "abc,dc->abd", "abc,dbc->ad", "ab,abc->ac",
    "abc,ab->ac", "abc,c->ab", "a,b->ab", "ab,ab->ab", "ab,ab->a", "ab,ab->", "ab->ba", "abc->b", "abc,cde->abde",
    "abc,adc->bad", "abcd,aecd->abec", "abce,ade->abcd", "...a,ab->...b", "...ab,...bc->...ac", "ab...,b->a...",
    "ab,bc,cd->ad", "ab,ac,ad->a", "abc,abd->c", "a b , b c -> c a",
    "ab,bcd->adc", "bcd,ab->acd", "b,bcd->cd",
)  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equation(equation: str) -> None:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [[SIZES[label] for label in term.replace("...", "de")] for term in terms]
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    node = helper.make_node("Einsum", [item.name for item in inputs], ["y"], equation=equation)
    rank = len(np.einsum(equation.replace(" ", ""), *(np.ones(shape) for shape in shapes)).shape)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    graph = gs.import_onnx(model)
    assert expand_einsums(graph, analyse(graph))
    tidy(graph)
    assert not any(item.op == "Einsum" for item in graph.nodes)
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    wanted = np.einsum(equation.replace(" ", ""), *feeds.values())
    np.testing.assert_allclose(run(gs.export_onnx(graph), feeds)[0], wanted, rtol=1e-4, atol=1e-5)


def test_diagonals_stay() -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]
    node = helper.make_node("Einsum", ["x"], ["y"], equation="aa->a")
    graph = gs.import_onnx(helper.make_model(helper.make_graph([node], "g", inputs, outputs)))
    assert not expand_einsums(graph, analyse(graph))
