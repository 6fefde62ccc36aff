# SPDX-License-Identifier: Apache-2.0
"""Rare forms of quantised files: weights that are transposed or cast first, zero points, old files, branches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.importing.quantized.removal import without_quantization

from tests.onnx_tools.agreement import run
from tests.support.quantizers import Quantizer

from .conftest import FEEDS


@pytest.mark.parametrize("way", ["transposed", "cast"])
def test_weights_that_are_transposed_or_cast_first_are_weights(original: ModelProto, way: str) -> None:
    quantizer = Quantizer("int8", "rounded")
    source = quantizer.apply(original)
    node = next(
        item for item in source.graph.node if item.op_type == "QuantizeLinear" and item.input[0] in quantizer.weights
    )
    held = next(item for item in source.graph.initializer if item.name == node.input[0])
    values = numpy_helper.to_array(held)
    if way == "transposed":
        held.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values.T), held.name))
        before = helper.make_node("Transpose", [held.name], ["before"], perm=[1, 0])
    else:
        quantizer.weights[held.name] = rounded_columns(values.astype(np.float16).astype(np.float32), node, source)
        held.CopyFrom(numpy_helper.from_array(values.astype(np.float16), held.name))
        before = helper.make_node("Cast", [held.name], ["before"], to=onnx.TensorProto.FLOAT)
    wanted = quantizer.weights[held.name]
    node.input[0] = "before"
    source.graph.node.insert(0, before)
    actual = without_quantization(Model.of(source))
    assert (actual.weights, actual.activations) == (len(quantizer.weights), quantizer.pairs)
    reader = next(item for item in source.graph.node if node.output[0] in item.input)
    result = actual.model.whole().graph.initializer
    output = next(item for item in result if item.name == reader.output[0])
    np.testing.assert_array_equal(numpy_helper.to_array(output), wanted)


def rounded_columns(values: np.ndarray, node: onnx.NodeProto, model: ModelProto) -> np.ndarray:
    """The values as int8 with the scales of a QuantizeLinear, and back in float32."""
    held = {item.name: item for item in model.graph.initializer}
    scale = numpy_helper.to_array(held[node.input[1]])
    return np.asarray(np.clip(np.rint(values / scale), -128, 127).astype(np.float32) * scale)


@pytest.mark.parametrize("zero", [0, 3, 255])
def test_weights_with_a_zero_point(original: ModelProto, zero: int) -> None:
    """uint8, with one scale and zero point per weight, as onnxruntime's quantiser writes them; biases are int32."""
    source, held = ModelProto(), {}
    source.CopyFrom(Quantizer("int8", "stored").apply(original))
    tensors = {item.name: item for item in source.graph.initializer}
    for node in source.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in tensors:
            continue
        stored, points, scale = (tensors[name] for name in node.input)
        moved = np.clip(numpy_helper.to_array(stored).astype(int) + zero, 0, 255).astype(np.uint8)
        held[node.output[0]] = (moved.astype(np.float32) - zero) * numpy_helper.to_array(points)
        stored.CopyFrom(numpy_helper.from_array(moved, stored.name))
        scale.CopyFrom(numpy_helper.from_array(np.full(tuple(scale.dims), zero, np.uint8), scale.name))
    add = next(item for item in source.graph.node if item.op_type == "Add" and item.input[0] in tensors)
    bias = numpy_helper.to_array(tensors[add.input[0]])
    steps = np.rint(bias / np.float32(1e-6)).astype(np.int32)
    source.graph.initializer.extend(
        [numpy_helper.from_array(np.array(1e-6, np.float32), "step"), numpy_helper.from_array(steps, "steps")]
    )
    source.graph.node.insert(0, helper.make_node("DequantizeLinear", ["steps", "step"], ["wide"], name="wide"))
    next(item for item in source.graph.node if item.output[0] == add.output[0]).input[0] = "wide"
    held["wide"] = steps.astype(np.float32) * np.float32(1e-6)
    actual = without_quantization(Model.of(source)).model.whole()
    result = {item.name: numpy_helper.to_array(item) for item in actual.graph.initializer}
    for name, values in held.items():
        np.testing.assert_array_equal(result[name], values)


def test_old_files_list_weights_as_inputs(original: ModelProto) -> None:
    """They list scales, too, which must not become inputs without a value."""
    source = Quantizer("int8", "rounded").apply(original)
    names = [value.name for value in source.graph.input]
    source.graph.input.extend(
        helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in source.graph.initializer
    )
    actual = without_quantization(Model.of(source)).model.whole()
    left = {item.name for item in actual.graph.initializer}
    assert [value.name for value in actual.graph.input if value.name not in left] == names
    assert rewrite(source).report.complete


def test_what_branches_read_stays(original: ModelProto) -> None:
    """A branch of an If reads the outer graph's tensors by name."""
    source = Quantizer("int8", "stored").apply(original)
    node = next(item for item in source.graph.node if item.op_type == "DequantizeLinear" and "Quant" in item.input[0])
    reader = next(item for item in source.graph.node if node.output[0] in item.input)
    inside = onnx.NodeProto()
    inside.CopyFrom(reader)
    inside.output[0] = "inside"
    branches = [
        helper.make_graph([item], name, [], [helper.make_tensor_value_info("inside", onnx.TensorProto.FLOAT, None)])
        for name, item in (("then", inside), ("else", inside))
    ]
    source.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    chosen = helper.make_node(
        "If", ["always"], [reader.output[0]], name="chosen", then_branch=branches[0], else_branch=branches[1]
    )
    reader.CopyFrom(chosen)
    result, plain = rewrite(source), rewrite(Quantizer("int8", "stored").apply(original))
    for a, b in zip(run(result.model, FEEDS), run(plain.model, FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("floats", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("kind", "zero", "largest"),
    [("INT8", 0, 127), ("UINT8", 128, 127), ("INT16", 0, 2**15), ("UINT16", 2**15, 2**15), ("FLOAT8E4M3FN", 0, 448),
     ("FLOAT8E5M2", 0, 57344)],
)  # fmt: skip
def test_weights_are_rounded_as_onnxruntime_rounds_them(
    kind: str, zero: int, largest: float, axis: int, floats: type[np.floating]
) -> None:
    """The numbers agree to the bit, including ties and those that are cut off."""
    size, number = 24, onnx.TensorProto.DataType.Value(kind)
    rng = np.random.default_rng(0)
    weight = np.rint(rng.standard_normal((size, size)) * 40).astype(floats)
    weight[0, 0] = 900
    scale = (np.abs(weight.astype(np.float32)).max(1 - axis % 2) / largest * np.linspace(0.5, 1, size)).astype(floats)
    points = np.full(size, zero).astype(helper.tensor_dtype_to_np_dtype(number))
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=axis),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=axis),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(floats)), ["n", size])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(floats)), None)],
        [
            *(numpy_helper.from_array(values, name) for name, values in (("w", weight), ("s", scale))),
            helper.make_tensor("z", number, [size], points.tobytes(), raw=True),
        ],
    )
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (wanted,) = open_session(Model(original), optimize=False).run(None, {"x": np.eye(size, dtype=floats)})
    actual = without_quantization(Model.of(original)).model.whole().graph.initializer
    result = next(numpy_helper.to_array(item) for item in actual if item.name == "d")
    np.testing.assert_array_equal(result.astype(floats), wanted)
