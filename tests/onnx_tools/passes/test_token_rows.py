# SPDX-License-Identifier: Apache-2.0
"""Rows of tables whose first reader is a norm: what makes them, what stays, equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.operators import node_attributes
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding
from padfree.onnx_tools.passes.norms.token_rows import token_rows

from . import packed_graphs
from .packed_graphs import WIDTH, PackedGraph, operators, run_passes

IDS = np.array([3, 0, 7, 7, 2])
VOCABULARY = 8
FP16 = {"rtol": 0.0, "atol": 3e-2}
"""Outputs up to 16, whose last bit is 2^-7, after a few more or fewer roundings to 11 bits."""


class IdGraph(PackedGraph):
    """A graph on the input "ids" [T]."""

    def __init__(self, precision: str = "fp32", element: int = TensorProto.INT32) -> None:
        super().__init__(precision)
        self.element = element

    def inputs(self) -> list[ValueInfoProto]:
        return [helper.make_tensor_value_info("ids", self.element, ["T"])]

    def rows(self, scale: float | None = None, *, ids: str = "ids", width: int = WIDTH) -> str:
        rows = self.op("Gather", self.constant(VOCABULARY, width), ids)
        return rows if scale is None else self.op("Mul", rows, self.initializer(scale))

    def rms(self, *inputs: str, **options: Any) -> str:
        return self.norm(*inputs, beta=False, rms=1, **options)


def rows_of_tables(graph: gs.Graph, precision: str) -> PassResult:
    """The pass as run_passes calls it."""
    del precision
    return token_rows(graph, analyse(graph))


def run(model: ModelProto, precision: str = "fp32") -> tuple[ModelProto, list[PassResult]]:
    return run_passes(model, precision, rows_of_tables, norm_folding)


def assert_same(model: ModelProto, rewritten: ModelProto, precision: str = "fp32") -> None:
    (ids,) = model.graph.input
    dtype = helper.tensor_dtype_to_np_dtype(ids.type.tensor_type.elem_type)
    packed_graphs.assert_same(model, rewritten, precision, {"ids": IDS.astype(dtype)}, FP16)


@pytest.mark.parametrize("element", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("scale", [None, 5.5])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_decoders_first_layer(precision: str, scale: float | None, element: int) -> None:
    """The rows go on as the residual stream."""
    p = IdGraph(precision, element)
    stream = p.rows(scale)
    following = p.rms(stream, p.linear(p.rms(stream)), sum_output=True)
    model = p.model(p.linear(following), f"{following}_total", stream)
    rewritten, (rows, folded) = run(model, precision)
    assert (rows, folded.replaced) == (PassResult("token rows", 1), 2)
    casts = ["Cast"] * (element == TensorProto.INT64)
    assert operators(rewritten) == [*casts, "TokenRows", "Linear", "Linear"]
    attributes = node_attributes(rewritten.graph.node[len(casts)])
    assert (attributes["scale"], attributes["has_moments"]) == (scale or 1.0, 1)
    assert_same(model, rewritten, precision)


def test_ids_of_tensorrts_type_are_read_as_they_are() -> None:
    """A Cast that Gather needs goes."""
    p = IdGraph()
    p.nodes.append(helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64))
    model = p.model(p.linear(p.rms(p.rows(ids="wide"))))
    rewritten, _ = run(model)
    assert operators(rewritten) == ["TokenRows", "Linear"]
    assert_same(model, rewritten)


def test_a_norm_that_stays_reads_the_rows() -> None:
    p = IdGraph()
    model = p.model(p.op("Relu", p.rms(p.rows())))
    rewritten, (rows, folded) = run(model)
    assert (rows.replaced, folded.replaced) == (1, 0)
    assert operators(rewritten) == ["TokenRows", "LayerNorm", "Relu"]
    assert node_attributes(rewritten.graph.node[0])["has_moments"] == 0
    assert_same(model, rewritten)


def of_two_tables(p: IdGraph) -> str:
    return p.rms(p.rows(), p.rows())


def with_bias(p: IdGraph) -> str:
    return p.rms(p.rows(), bias=p.constant(WIDTH))


def scaled_by_column(p: IdGraph) -> str:
    return p.rms(p.op("Mul", p.rows(), p.constant(WIDTH)))


def of_another_width(p: IdGraph) -> str:
    return p.rms(p.rows(width=WIDTH + 8), width=WIDTH + 8)


def of_other_rows(p: IdGraph) -> str:
    return p.rms(p.op("Gather", p.constant(VOCABULARY, WIDTH), p.initializer([1, 2], "int32")))


@pytest.mark.parametrize(
    "network",
    [of_two_tables, with_bias, scaled_by_column, of_another_width, of_other_rows],
    ids=lambda item: item.__name__,
)
def test_other_rows_stay(network: Any) -> None:
    p = IdGraph()
    rewritten, (rows, _) = run(p.model(network(p)))
    assert rows == PassResult("token rows", 0)
    assert "TokenRows" not in operators(rewritten)
