# SPDX-License-Identifier: Apache-2.0
"""RMS norms of what layers add to their residual stream: what makes their sums, what stays and why, equal results."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto
from padfree.onnx_tools.operators import node_attributes
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding
from padfree.onnx_tools.passes.norms.post_norms import post_norms

from . import packed_graphs
from .packed_graphs import WIDTH, PackedGraph, activations, operators, run_passes

FP16 = {"rtol": 0.0, "atol": 2e-2}
"""Outputs up to 8, whose last bit is 2^-8, after a few more or fewer roundings to 11 bits."""


def sums_of_norms(graph: gs.Graph, precision: str) -> PassResult:
    """The pass as run_passes calls it."""
    del precision
    return post_norms(graph)


def run(model: ModelProto, precision: str = "fp32") -> tuple[ModelProto, list[PassResult]]:
    return run_passes(model, precision, sums_of_norms, norm_folding)


def assert_same(model: ModelProto, rewritten: ModelProto, precision: str = "fp32") -> None:
    packed_graphs.assert_same(model, rewritten, precision, {"x": activations(5, precision)}, FP16)


def rms(p: PackedGraph, *inputs: str, **options: Any) -> str:
    return p.norm(*inputs, beta=False, rms=1, **options)


def layer(p: PackedGraph, stream: str, normed: str, *, turned: bool = False) -> tuple[str, str]:
    """A block whose result is normed before it goes to the stream; the stream after it, and its norm."""
    post = rms(p, p.linear(normed))
    following = rms(p, *((stream, post) if turned else (post, stream)), sum_output=True)
    return f"{following}_total", following


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_layers_with_norms_before_and_after_them(precision: str) -> None:
    """Sums' operands in both orders; the last norm gives no sum."""
    p = PackedGraph(precision)
    stream, normed = layer(p, "x", rms(p, "x"))
    stream, normed = layer(p, stream, normed, turned=True)
    last = rms(p, rms(p, p.linear(normed)), stream)
    model = p.model(last, stream)
    rewritten, (sums, folded) = run(model, precision)
    assert (sums, folded.replaced) == (PassResult("post-norms", 3), 2)
    assert operators(rewritten) == ["LayerNorm", *["Linear", "PostNorm"] * 3, "LayerNorm"]
    attributes = [node_attributes(node) for node in rewritten.graph.node]
    assert [item["has_moments"] for item in attributes if "has_moments" in item] == [0, 1, 0, 1, 0, 0]
    assert [item.get("has_x_moments") for item in attributes if "activation" in item] == [0, 1, 1]
    assert stream in [node.output[0] for node in rewritten.graph.node if node.op_type == "PadfreePostNorm"]
    assert_same(model, rewritten, precision)


def test_a_norm_that_stays_reads_the_sum() -> None:
    """Something else than a GEMM reads it."""
    p = PackedGraph()
    following = rms(p, rms(p, p.linear("x")), "x", sum_output=True)
    model = p.model(p.op("Relu", following), p.linear(f"{following}_total"))
    rewritten, (sums, folded) = run(model)
    assert (sums.replaced, folded.replaced) == (1, 0)
    assert operators(rewritten) == ["Linear", "PostNorm", "LayerNorm", "Relu", "Linear"]
    assert_same(model, rewritten)


def test_a_norm_that_adds_to_a_sum_keeps_its_kernel() -> None:
    p = PackedGraph()
    following = rms(p, rms(p, p.linear("x")), "x", sum_output=True)
    model = p.model(p.linear(p.norm(f"{following}_total", p.op("Relu", "x"))), p.linear(following))
    rewritten, (sums, folded) = run(model)
    assert (sums.replaced, folded.replaced) == (1, 1)
    (miss,) = folded.missed
    assert "has added a residual to" in miss.reason
    assert_same(model, rewritten)


def with_two_readers(p: PackedGraph) -> list[str]:
    post = rms(p, p.linear("x"))
    return [p.linear(rms(p, post, "x")), p.op("Relu", post)]


def with_bias(p: PackedGraph) -> list[str]:
    return [p.linear(rms(p, rms(p, p.linear("x")), "x", bias=p.constant(WIDTH)))]


@pytest.mark.parametrize("network", [with_two_readers, with_bias])
def test_other_sums_stay(network: Any) -> None:
    p = PackedGraph()
    model = p.model(*network(p))
    rewritten, (sums, _) = run(model)
    assert sums == PassResult("post-norms", 0)
    assert "PostNorm" not in operators(rewritten)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rms": 0, "beta": False}, "subtracts a mean or adds a beta"),
        ({"rms": 1, "beta": True}, "subtracts a mean or adds a beta"),
        ({"rms": 1, "beta": False, "bias": "constant"}, "norms a sum"),
        ({"rms": 1, "beta": False, "residual": "x"}, "norms a sum"),
    ],
)
def test_other_norms_stay(options: dict[str, Any], reason: str) -> None:
    p = PackedGraph()
    changes = {"bias": p.constant(WIDTH)} if "bias" in options else {}
    post = p.norm(p.linear("x"), **{**options, **changes})
    model = p.model(p.linear(rms(p, post, "x")))
    rewritten, (sums, _) = run(model)
    assert [reason in miss.reason for miss in sums.missed] == [True]
    assert "PostNorm" not in operators(rewritten)
    assert_same(model, rewritten)


def test_other_widths_stay() -> None:
    p = PackedGraph()
    wide = rms(p, p.linear("x", columns=96), width=96)
    model = p.model(p.linear(rms(p, wide, p.linear("x", columns=96), width=96), rows=96))
    rewritten, (sums, _) = run(model)
    assert [miss.reason.split("; ")[0] for miss in sums.missed] == [f"'{wide}' is 96 wide"]
    assert "PostNorm" not in operators(rewritten)
