# SPDX-License-Identifier: Apache-2.0
"""Norms and embeddings ahead of GEMMs in e4m3 write these rows themselves, with the bits of a QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.eight_bits import OPSET
from padfree.onnx_tools.files.graph_io import export_model, import_graph
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.newer_opsets import raise_opset
from padfree.onnx_tools.operators import check_nodes, node_attributes, with_functions
from padfree.onnx_tools.precision.element_types import check_element_types
from padfree.onnx_tools.quantization.formats import E4M3
from padfree.onnx_tools.quantization.layers import choose_layers
from padfree.onnx_tools.quantization.narrowing import narrow_gemms
from padfree.onnx_tools.quantization.options import QuantizationOptions
from padfree.onnx_tools.quantization.scales import TensorScale
from padfree.onnx_tools.quantization.weights import QuantizedWeights

from tests.onnx_tools.agreement import run
from tests.onnx_tools.passes.packed_graphs import EPSILON, WIDTH, PackedGraph, activations
from tests.support.samples import PLAIN_EMBEDDING

SCALE = 2.0**-6
WORDS = 30
NORMS = ("PadfreeLayerNorm", "PadfreeEmbedding")


class TokenGraph(PackedGraph):
    """A graph with ids "x" [T] and the prefix sums "cu" of the sequences' lengths."""

    def embedding(self) -> str:
        inputs = ["x", "cu", self.constant(WORDS, WIDTH), self.constant(WIDTH, center=1.0), self.constant(WIDTH)]
        attributes = {**PLAIN_EMBEDDING, "epsilon": EPSILON, "has_beta": 1}
        return self.padfree("PadfreeEmbedding", "norm", inputs, **attributes)

    def inputs(self) -> list[ValueInfoProto]:
        return [
            helper.make_tensor_value_info("x", TensorProto.INT32, ["T"]),
            helper.make_tensor_value_info("cu", TensorProto.INT32, ["N"]),
        ]


def ahead_of_a_layer() -> tuple[ModelProto, str]:
    """Pre-LN: only products read the norm, and the sum is used further on."""
    graph = PackedGraph("fp16")
    normed = graph.norm("x", graph.linear("x"), sum_output=True)
    inner = graph.linear(normed, 2 * WIDTH, activation="gelu")
    other = graph.linear(normed)
    return graph.model(graph.linear(inner, rows=2 * WIDTH, residual=f"{normed}_total"), other), normed


def after_a_layer() -> tuple[ModelProto, str]:
    """Post-LN: the next layer also adds to the rows that it reads."""
    graph = PackedGraph("fp16")
    normed = graph.norm("x")
    inner = graph.linear(normed, 2 * WIDTH, activation="gelu")
    return graph.model(graph.linear(inner, rows=2 * WIDTH, residual=normed)), normed


def as_an_output() -> tuple[ModelProto, str]:
    graph = PackedGraph("fp16")
    normed = graph.norm("x")
    return graph.model(graph.linear(normed), normed), normed


def embedding_model() -> tuple[ModelProto, str]:
    """Only products read it."""
    graph = TokenGraph("fp16")
    normed = graph.embedding()
    return graph.model(graph.linear(normed)), normed


def embedded_and_added_to() -> tuple[ModelProto, str]:
    graph = TokenGraph("fp16")
    normed = graph.embedding()
    return graph.model(graph.linear(normed, residual=normed)), normed


GRAPHS = {
    ahead_of_a_layer: ["y_e4m3", "sum"],
    after_a_layer: ["y", "y_e4m3"],
    as_an_output: ["y", "y_e4m3"],
    embedding_model: ["y_e4m3"],
    embedded_and_added_to: ["y", "y_e4m3"],
}


def narrow(model: ModelProto, *keep: str) -> ModelProto:
    """The model with its GEMMs in e4m3, except those that are kept."""
    raise_opset(model, OPSET)
    source = Model(model)
    graph = import_graph(source)
    layers = choose_layers(graph, QuantizationOptions(keep=keep)).chosen_layers
    narrow_gemms(graph, "fp16", layers, {layer.x: TensorScale(SCALE) for layer in layers}, QuantizedWeights(), E4M3)
    tidy(graph)
    rewritten = export_model(graph, source).whole()
    check_nodes(rewritten)
    check_element_types(rewritten, "fp16")
    return rewritten


def unfold(model: ModelProto) -> ModelProto:
    """The model with a QuantizeLinear after every norm that writes e4m3."""
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.initializer.append(helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]))
    for node in model.graph.node:
        results = node_attributes(node)["results"] if node.op_type in NORMS else "act"
        if results == "act":
            result.graph.node.append(node)
            continue
        plain = NodeProto()
        plain.CopyFrom(node)
        inputs = list(node.output)
        wide = inputs.pop(0) if results == "both" else f"{node.name}_wide"
        narrow = inputs.pop(0)
        plain.output[:] = [wide, *inputs]
        scale = f"{node.name}_scale"
        for attribute in plain.attribute:
            if attribute.name == "results":
                attribute.s = b"act"
            if attribute.name == "y_scale":
                result.graph.initializer.append(numpy_helper.from_array(np.asarray(attribute.f, np.float16), scale))
        result.graph.node.extend([plain, helper.make_node("QuantizeLinear", [wide, scale, "zero"], [narrow])])
    return result


def feeds_of(model: ModelProto, lengths: list[int]) -> dict[str, np.ndarray]:
    if len(model.graph.input) == 1:
        return {"x": activations(sum(lengths), "fp16")}
    ids = np.random.default_rng(3).integers(-1, WORDS + 1, sum(lengths) + 2).astype(np.int32)
    return {"x": ids, "cu": np.cumsum([0, *lengths]).astype(np.int32)}


def norms_of(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type in NORMS]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_norms_give_e4m3(make: Any) -> None:
    model, rows = make()
    rewritten = narrow(model)
    (norm,) = norms_of(rewritten)
    attributes, outputs = node_attributes(norm), GRAPHS[make]
    assert attributes["results"] == ("both" if "y" in outputs else "e4m3")
    assert attributes["y_scale"] == SCALE
    wanted = {"y": rows, "y_e4m3": f"{rows}_e4m3", "sum": f"{rows}_total"}
    assert list(norm.output) == [wanted[name] for name in outputs]
    assert f"{rows}_e4m3" not in [name for node in rewritten.graph.node if node is not norm for name in node.output]
    separate = unfold(rewritten)
    assert [node.op_type for node in separate.graph.node].count("QuantizeLinear") == len(
        [node for node in rewritten.graph.node if node.op_type == "QuantizeLinear"]
    ) + 1
    for lengths in ([5, 0, 120, 1], [1], [0]):
        feeds = feeds_of(rewritten, lengths)
        before, after = (run(with_functions(item, "fp16"), feeds) for item in (separate, rewritten))
        for a, b in zip(before, after, strict=True):
            assert a.dtype == np.float16
            np.testing.assert_array_equal(a, b)


def test_a_gemm_that_stays_reads_half_precision() -> None:
    """One of two readers is kept in half precision, so the norm writes both types."""
    model, rows = ahead_of_a_layer()
    kept = next(node.name for node in model.graph.node if node.output[0] == model.graph.output[1].name)
    (norm,) = norms_of(narrow(model, kept))
    assert list(norm.output) == [rows, f"{rows}_e4m3", f"{rows}_total"]


def test_the_sum_beside_a_norm_is_quantised_by_itself() -> None:
    """The product reads the sum, not the norm: the norm stays as it was."""
    graph = PackedGraph("fp16")
    normed = graph.norm("x", "x", sum_output=True)
    rewritten = narrow(graph.model(graph.linear(f"{normed}_total"), normed))
    (norm,) = norms_of(rewritten)
    assert node_attributes(norm)["results"] == "act"
    assert [node.op_type for node in rewritten.graph.node].count("QuantizeLinear") == 1
