# SPDX-License-Identifier: Apache-2.0
"""Files with Q/DQ around products: what remains of them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized.removal import (
    holds_quantization,
    without_quantization,
    without_rounding,
)
from padfree.onnx_tools.quantization.e4m3 import quantized_rows

from tests.onnx_tools.agreement import run
from tests.support.quantizers import FORMS, KINDS, Quantizer, TorchQuantizer, with_weights

from .conftest import FEEDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_has_the_weights_of_the_file(original: ModelProto, kind: str, form: str) -> None:
    """The weights are equal bit by bit, wherever they came from, and the model packs as the float model does."""
    quantizer = Quantizer(kind, form)
    source = quantizer.apply(original)
    assert holds_quantization(source)
    result = rewrite(source)
    assert result.report.complete
    wanted = rewrite(with_weights(original, quantizer.weights)).model
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in wanted.graph.node]
    assert quantizer.pairs > len(quantizer.weights)
    assert read_metadata(result.model)["unquantized"] == {
        "types": [kind],
        "weights": len(quantizer.weights),
        "activations": quantizer.pairs,
    }
    for a, b in zip(run(result.model, FEEDS), run(wanted, FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rounds", "smooth"), [(True, False), (False, False), (True, True)])
def test_exports_from_torch(original: ModelProto, kind: str, rounds: bool, smooth: bool) -> None:
    """TensorRT's own nodes, only weights quantised, SmoothQuant's factors: all of them pack as the float model does.

    The factors are powers of two, so that the weights are recovered bit by bit.
    """
    quantizer = TorchQuantizer(kind, rounds=rounds, smooth=smooth)
    result = rewrite(quantizer.apply(original), strict=True)
    wanted = rewrite(with_weights(original, quantizer.weights)).model
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in wanted.graph.node]
    actual = read_metadata(result.model)["unquantized"]
    assert actual == {"types": [kind], "weights": len(quantizer.weights), "activations": quantizer.pairs}
    assert "trt" not in {item.domain for item in result.model.opset_import}
    for a, b in zip(run(result.model, FEEDS), run(wanted, FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_nodes_of_tensorrt_are_named(original: ModelProto) -> None:
    """They are such as torch's export writes for int4."""
    source = TorchQuantizer("e4m3", rounds=False).apply(original)
    node = next(node for node in source.graph.node if node.op_type == "TRT_FP8DequantizeLinear")
    node.op_type = "DequantizeLinear"
    with pytest.raises(RewriteError, match=r"\(trt::\w+\) is TensorRT's own low-precision operator"):
        rewrite(source)


@pytest.mark.parametrize("form", FORMS)
def test_nodes_of_onnxruntime_count(original: ModelProto, form: str) -> None:
    source = Quantizer("int8", form).apply(original)
    for node in source.graph.node:
        if node.op_type.endswith("quantizeLinear") or node.op_type == "QuantizeLinear":
            node.domain = "com.microsoft"
    source.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    plain = rewrite(Quantizer("int8", form).apply(original)).model
    for a, b in zip(run(rewrite(source).model, FEEDS), run(plain, FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_after_an_identity_are_weights(original: ModelProto) -> None:
    """They are not taken for activations, which would lose their rounding."""
    quantizer = Quantizer("int8", "rounded")
    source = quantizer.apply(original)
    node = next(
        node for node in source.graph.node if node.op_type == "QuantizeLinear" and node.input[0] in quantizer.weights
    )
    source.graph.node.insert(0, helper.make_node("Identity", [node.input[0]], ["handed_on"], name="handed_on"))
    next(item for item in source.graph.node if item.name == node.name).input[0] = "handed_on"
    actual = without_quantization(Model(source))
    assert (actual.weights, actual.activations) == (len(quantizer.weights), quantizer.pairs)


def test_weights_stay_for_those_who_take_activations_alone(original: ModelProto) -> None:
    quantizer = Quantizer("int8", "stored")
    source = quantizer.apply(original)
    actual = without_rounding(Model(source))
    assert actual.activations == quantizer.pairs
    kinds = [node.op_type for node in actual.model.proto.graph.node]
    assert kinds.count("DequantizeLinear") == len(quantizer.weights) == actual.weights
    assert "QuantizeLinear" not in kinds


def test_infinite_scales_of_activations_are_not_needed(original: ModelProto) -> None:
    """ModelOpt gives such scales to masks that hold -inf."""
    inputs = quantize_and_change(original, lambda graph: set_scale(graph, float("inf")))
    assert rewrite(inputs).report.complete


def test_models_without_it_stay(original: ModelProto) -> None:
    assert not holds_quantization(original)
    assert "unquantized" not in read_metadata(rewrite(original, verify=False).model)


def quantize_and_change(original: ModelProto, change: Any) -> ModelProto:
    model = Quantizer("int8", "stored").apply(original)
    change(model.graph)
    return model


def set_scale(graph: onnx.GraphProto, value: float) -> None:
    name = next(node.input[1] for node in graph.node if node.op_type == "DequantizeLinear")
    tensor = next(item for item in graph.initializer if item.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.full(tuple(tensor.dims), value, np.float32), name))


def weight_scale(graph: onnx.GraphProto, value: float) -> None:
    """Changes the last number of the first weight's scale."""
    weights = {item.name: item for item in graph.initializer}
    name = next(n.input[1] for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in weights)
    values = numpy_helper.to_array(weights[name]).copy()
    values[-1] = value
    weights[name].CopyFrom(numpy_helper.from_array(values, name))


def another_scale(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear")
    graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "another"))
    node.input[1] = "another"


def computed_scale(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear")
    node.input[1] = "attention_mask"


def another_axis(graph: onnx.GraphProto) -> None:
    """Gives an activation a scale for every column, then for every row."""
    graph.initializer.append(numpy_helper.from_array(np.full(64, 0.05, np.float32), "columns"))
    graph.initializer.append(numpy_helper.from_array(np.zeros(64, np.int8), "zeros"))
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear" and "Quant" in node.input[0])
    maker = next(item for item in graph.node if item.output[0] == node.input[0])
    for item, axis in ((maker, 2), (node, 1)):
        item.input[1], item.input[2] = "columns", "zeros"
        item.attribute.append(helper.make_attribute("axis", axis))


def few_scales(graph: onnx.GraphProto) -> None:
    weights = {item.name: item for item in graph.initializer}
    node = next(n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in weights)
    for index in (1, 2):
        values = numpy_helper.to_array(weights[node.input[index]])[:5]
        weights[node.input[index]].CopyFrom(numpy_helper.from_array(values, node.input[index]))


def blocks(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "DequantizeLinear")
    node.attribute.append(helper.make_attribute("block_size", 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: set_scale(graph, 0.0), "has the scale 0, allowed are finite numbers above 0"),
        (lambda graph: set_scale(graph, float("nan")), "has the scale nan, allowed are finite numbers above 0"),
        (lambda graph: weight_scale(graph, float("inf")), "has the scale inf, allowed are finite numbers above 0"),
        (lambda graph: weight_scale(graph, -1.0), "has the scale -1, allowed are finite numbers above 0"),
        (another_scale, r"has another scale than 'QuantizeLinear_\d+' \(QuantizeLinear\) ahead of it"),
        (another_axis, r"has its scales along axis 1, and 'Quant\w+' \(QuantizeLinear\) ahead of it along axis 2"),
        (few_scales, "has 5 scales along axis 1 of a weight 64x64"),
        (computed_scale, "'attention_mask', which is computed: only constant scales are understood"),
        (blocks, "has scales for blocks of 32 numbers; rewrite the float model that the file was quantised from"),
    ],
)
def test_what_is_not_understood_is_refused(original: ModelProto, change: Any, message: str) -> None:
    with pytest.raises(RewriteError, match=message):
        without_quantization(Model(quantize_and_change(original, change)))


def test_weights_in_e4m3_come_out_as_they_were(original: ModelProto) -> None:
    """Their largest number is e4m3's largest, so that the new scale is the old one.

    On the way they become fp16: a stored number times its scale with 11 bits, which rounding to 3 bits undoes.
    """
    quantizer = Quantizer("e4m3", "stored")
    quantizer.apply(original)
    for values in quantizer.weights.values():
        stored, old = quantized_rows(np.ascontiguousarray(values.T))
        rows, scale = quantized_rows(np.ascontiguousarray(values.astype(np.float16).astype(np.float32).T))
        assert (rows.view(np.uint8) == stored.view(np.uint8)).mean() > 0.999
        np.testing.assert_allclose(scale, old, rtol=2.0**-10)
