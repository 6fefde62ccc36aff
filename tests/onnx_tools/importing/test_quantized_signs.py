# SPDX-License-Identifier: Apache-2.0
"""Relus that onnxruntime's quantiser removed, because the QuantizeLinear after them cuts off everything below zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized.removal import without_quantization, without_rounding

from tests.onnx_tools.agreement import run

WIDTH = 8
X = {"x": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)}
TYPES = {"uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16}


def model(*nodes: Any, kind: str = "uint8", zero: int = 0, scale: float = 0.05, output: str = "y") -> ModelProto:
    """A model with x [n,8], the weight w [8,8], constants, and the scale s with its zero point z."""
    held = {
        "w": np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32),
        "one": np.array(1, np.float32),
        "two": np.array(2, np.float32),
        "low": np.array(-1e4, np.float32),
        "s": np.array(scale, np.float32),
        "z": np.array(zero, TYPES[kind]),
    }
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [result], name=result, **options) for op, inputs, result, options in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


MATMUL = ("MatMul", ["x", "w"], "p", {})


def pair(x: str, stem: str = "") -> list[Any]:
    return [
        ("QuantizeLinear", [x, "s", "z"], f"q{stem}", {}),
        ("DequantizeLinear", [f"q{stem}", "s", "z"], f"d{stem}", {}),
    ]


LAST = ("Mul", ["d", "two"], "y", {})


def ops(original: ModelProto) -> list[str]:
    return [node.op_type for node in original.graph.node]


@pytest.mark.parametrize(
    ("kind", "zero"), [("uint8", 0), ("int8", -128), ("uint16", 0), ("int16", -32768)], ids=[*TYPES]
)
@pytest.mark.parametrize("remove", [without_quantization, without_rounding])
def test_what_was_cut_off_is_cut_off(kind: str, zero: int, remove: Any) -> None:
    original = model(MATMUL, *pair("p"), LAST, kind=kind, zero=zero)
    actual = remove(Model.of(original)).model.whole()
    assert ops(actual) == ["MatMul", "Relu", "Mul"]
    (exact,), (rounded,) = run(actual, X), run(original, X)
    assert exact.min() == 0 < exact.max()
    np.testing.assert_allclose(exact, rounded, atol=0.051)


def test_nodes_in_another_order() -> None:
    original = model(MATMUL, *pair("p"), LAST)
    nodes = list(original.graph.node)
    del original.graph.node[:]
    original.graph.node.extend(nodes[::-1])
    assert ops(without_quantization(Model.of(original)).model.whole()) == ["MatMul", "Relu", "Mul"]


def test_one_relu_serves_all_that_read_the_same() -> None:
    second = ("DequantizeLinear", ["q", "s", "z"], "d2", {})
    actual = without_quantization(Model.of(model(MATMUL, *pair("p"), second, ("Mul", ["d", "d2"], "y", {}))))
    assert actual.activations == 1
    assert ops(actual.model.whole()) == ["MatMul", "Relu", "Mul"]


def test_a_relu_gives_an_output() -> None:
    original = model(MATMUL, *pair("p"), output="d")
    actual = without_quantization(Model.of(original)).model.whole()
    np.testing.assert_array_equal(
        run(actual, X)[0], np.maximum(X["x"] @ numpy_helper.to_array(original.graph.initializer[0]), 0)
    )


@pytest.mark.parametrize(
    "nodes",
    [
        [MATMUL, ("Softmax", ["p"], "a", {}), *pair("a"), LAST],
        [MATMUL, ("Erf", ["p"], "e", {}), ("Add", ["e", "one"], "a", {}), *pair("a"), LAST],
        # The variance of a written-out norm, and its root.
        [
            *(MATMUL, ("Mul", ["p", "p"], "b", {}), ("ReduceMean", ["b"], "c", {})),
            *(("Add", ["c", "one"], "a", {}), *pair("a"), LAST),
        ],
        [
            MATMUL,
            ("Pow", ["p", "two"], "b", {}),
            ("Sqrt", ["b"], "c", {}),
            ("Div", ["one", "c"], "a", {}),
            *pair("a"),
            LAST,
        ],
        [MATMUL, ("Relu", ["p"], "b", {}), ("Reshape", ["b", "shape"], "a", {}), *pair("a"), LAST],
        [MATMUL, *pair("p", "0"), ("Transpose", ["d0"], "a", {}), *pair("a"), LAST],
        # A mask: no weight is involved.
        [("Sub", ["one", "x"], "a", {}), *pair("a"), LAST],
        # A mask that is expanded to the size of something made from weights.
        [
            MATMUL,
            ("Shape", ["p"], "b", {}),
            ("Greater", ["x", "one"], "c", {}),
            ("Expand", ["c", "b"], "e", {}),
            ("Where", ["e", "one", "low"], "a", {}),
            *pair("a"),
            LAST,
        ],
    ],
)
def test_there_is_nothing_to_cut_off(nodes: list[Any]) -> None:
    original = model(*nodes)
    original.graph.initializer.append(numpy_helper.from_array(np.array([-1, WIDTH]), "shape"))
    wanted = [op for op in ops(original) if not op.endswith("quantizeLinear") and op != "QuantizeLinear"]
    actual = ops(without_quantization(Model.of(original)).model.whole())
    # Of the nodes above, only one pair directly follows a MatMul.
    assert [op for op in actual if op != "Relu"] == [op for op in wanted if op != "Relu"]
    assert actual.count("Relu") == (wanted.count("Relu") + any(name == "d0" for _, _, name, _ in nodes))


@pytest.mark.parametrize(
    ("kind", "zero", "scale"), [("uint8", 128, 0.05), ("int8", 0, 0.05), ("uint8", 1, 0.05), ("uint8", 0, np.inf)]
)
def test_other_zero_points_cut_off_nothing(kind: str, zero: int, scale: float) -> None:
    """An infinite scale, as onnxruntime gives to masks with float32's lowest number, says nothing."""
    original = model(MATMUL, *pair("p"), LAST, kind=kind, zero=zero, scale=scale)
    assert ops(without_quantization(Model.of(original)).model.whole()) == ["MatMul", "Mul"]


class Batch(CalibrationDataReader):
    """Calibration data of one batch."""

    def __init__(self) -> None:
        self._batches = [X]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._batches.pop() if self._batches else None


def test_files_of_onnxruntimes_quantiser(tmp_path: Path) -> None:
    """The quantiser removes the Relu, so that only the zero point shows the sign."""
    original = model(MATMUL, ("Relu", ["p"], "r", {}), ("MatMul", ["r", "w"], "y", {}))
    onnx.save(original, tmp_path / "float.onnx")
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(tmp_path / "float.onnx", tmp_path / "quantised.onnx", Batch(), **kinds)
    quantised = onnx.load(tmp_path / "quantised.onnx")
    assert "Relu" not in ops(quantised)
    taken_out = without_quantization(Model.of(quantised))
    assert (taken_out.weights, set(taken_out.types)) == (1, {"uint8", "int8"})
    assert taken_out.activation_types == ("uint8",)
    actual = taken_out.model.whole()
    assert ops(actual) == ["MatMul", "Relu", "MatMul", "Identity"]  # an Identity keeps the output's name
    (wanted,), (exact,) = run(original, X), run(actual, X)
    assert np.abs(exact - wanted).max() < 0.02 * np.abs(wanted).max()  # the weights are rounded to 8 bits
