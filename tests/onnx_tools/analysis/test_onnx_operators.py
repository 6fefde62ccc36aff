# SPDX-License-Identifier: Apache-2.0
"""The records of ONNX's operators compared with what ONNX's reference implementation computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator
from padfree.onnx_tools.analysis.onnx_operators import OPERATORS, Movement, Operator, ShapeRule, Work

Array = npt.NDArray[Any]

OPSET = 21
SHAPE = (3, 4)
BOOLEAN = ("And", "Not", "Or", "Xor")
INTEGER = ("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")
UNCHECKED = {"MeanVarianceNormalization", "RMSNormalization", "Resize", "Scatter", "Swish", "TensorScatter"}
"""Operators that opset 21 or the reference implementation lacks."""
IMAGES = ("GroupNormalization", "InstanceNormalization", "LRN")
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "BitShift": {"direction": "LEFT"},
    "Cast": {"to": TensorProto.DOUBLE},
    "Concat": {"axis": 0},
    "GroupNormalization": {"num_groups": 2},
    "LRN": {"size": 3},
}
PARAMETERS: dict[str, list[Array]] = {
    "Expand": [np.array([2, 3, 4])],
    "Gather": [np.array([2, 0])],
    "Reshape": [np.array([4, 3])],
    "Slice": [np.array([1]), np.array([3])],
    "Tile": [np.array([2, 1])],
    "ReverseSequence": [np.array([1, 2, 3, 2])],
    "ScatterElements": [np.array([[2, 0, 1, 1]]), np.ones((1, 4), np.float32)],
    "Unsqueeze": [np.array([1])],
}
ALONG_ONE: dict[str, list[Array]] = {
    "DequantizeLinear": [np.arange(1, 5, dtype=np.float32)],
    "Gather": [np.array([2, 0])],
    "GatherElements": [np.array([[2, 0], [1, 1], [3, 2]])],
    "OneHot": [np.array(5), np.array([0.0, 1.0], np.float32)],
    "Pad": [np.array([1, 2]), np.array(0.5, np.float32)],
    "QuantizeLinear": [np.arange(1, 5, dtype=np.float32)],
    "ScatterElements": [np.array([[2, 0], [1, 1], [3, 2]]), np.arange(6, dtype=np.float32).reshape(3, 2)],
    "Slice": [np.array([1]), np.array([3])],
    "TopK": [np.array([2])],
}
"""The inputs after the first one of nodes that work along axis 1 of [3,4], without their axes."""


def operands(record: Operator, draw: np.random.Generator, *, zeros: bool = False) -> list[Array]:
    """Inputs of the operator: as many as it needs (two if it takes any number), then the parameters."""
    schema = defs.get_schema(record.name, OPSET)
    count = 2 if schema.inputs[0].option == defs.OpSchema.FormalParameterOption.Variadic else schema.min_input
    if record.name in PARAMETERS:
        count = 1
    if record.name in BOOLEAN:
        arrays: list[Array] = [draw.integers(0, 2, SHAPE) > 0 for _ in range(count)]
    elif record.name in INTEGER:
        arrays = [draw.integers(0, 4, SHAPE).astype(np.uint8) for _ in range(count)]
    else:
        arrays = [(draw.standard_normal(SHAPE) * (0 if zeros else 1)).astype(np.float32) for _ in range(count)]
    if record.name == "Where":
        arrays[0] = arrays[0] > 0
    if record.name in ("Acos", "Asin", "Atanh"):
        arrays = [np.tanh(array) for array in arrays]
    if record.name in ("Acosh", "Log", "Sqrt"):
        arrays = [np.abs(array) + 1 for array in arrays]
    if record.name == "LayerNormalization":
        arrays = [arrays[0], np.ones(SHAPE[-1:], np.float32)]
    return [*arrays, *PARAMETERS.get(record.name, [])]


def run(record: Operator, inputs: list[Array], along: dict[str, int] | None = None) -> Array:
    """The node's first output; `along` are its attributes besides those that it needs."""
    names = [f"x{position}" for position in range(len(inputs))]
    outputs = ["y", "indices"] if record.name == "TopK" else ["y"]
    node = helper.make_node(record.name, names, outputs, **{**ATTRIBUTES.get(record.name, {}), **(along or {})})
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    result = helper.make_value_info("y", onnx.TypeProto())
    graph = helper.make_graph([node], "graph", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    with np.errstate(all="ignore"):
        (y,) = ReferenceEvaluator(model).run(["y"], dict(zip(names, inputs, strict=True)))
    return np.asarray(y)


def records_with(*names: str, **properties: Any) -> list[Any]:
    """The records with all of these properties, or with one of these names."""
    return [
        pytest.param(record, id=record.name)
        for record in OPERATORS.values()
        if record.name not in UNCHECKED
        and (record.name in names or all(getattr(record, key) == value for key, value in properties.items()))
    ]


@pytest.mark.parametrize("record", records_with(work=Work.ELEMENTWISE))
def test_elements_depend_on_the_same_elements(record: Operator) -> None:
    inputs = operands(record, np.random.default_rng(1))
    order = np.random.default_rng(2).permutation(SHAPE[0])
    actual = run(record, [array[order] for array in inputs])
    np.testing.assert_array_equal(actual, run(record, inputs)[order])


@pytest.mark.parametrize("record", records_with(shape=ShapeRule.FIRST))
def test_shape_and_type_are_those_of_the_first_input(record: Operator) -> None:
    if record.name == "BatchNormalization":
        inputs = [np.ones(SHAPE, np.float32), *(np.ones(SHAPE[1:], np.float32) for _ in range(4))]
    elif record.name in IMAGES:
        scales = [np.ones(4, np.float32)] * (0 if record.name == "LRN" else 2)
        inputs = [np.ones((3, 4, 5, 6), np.float32), *scales]
    else:
        inputs = operands(record, np.random.default_rng(1))
    y = run(record, inputs)
    assert (y.shape, y.dtype) == (inputs[0].shape, inputs[0].dtype)


@pytest.mark.parametrize("record", records_with(finite=True))
def test_zeros_give_finite_numbers(record: Operator) -> None:
    assert np.isfinite(run(record, operands(record, np.random.default_rng(1), zeros=True))).all()


@pytest.mark.parametrize("record", [item for item in records_with() if item.values[0].least is not None])
def test_nothing_is_below_the_least(record: Operator) -> None:
    y = run(record, operands(record, np.random.default_rng(1)))
    assert record.least is not None
    assert y.astype(np.float64).min() >= record.least


@pytest.mark.parametrize("record", records_with(keeps_sign=True))
def test_signs_are_kept(record: Operator) -> None:
    inputs = [np.abs(array) for array in operands(record, np.random.default_rng(1))]
    assert run(record, inputs).min() >= 0


@pytest.mark.parametrize("record", [item for item in records_with() if item.values[0].moves is not None])
def test_moved_elements_are_those_of_the_input(record: Operator) -> None:
    inputs = operands(record, np.random.default_rng(1))
    y, x = run(record, inputs), inputs[0]
    if record.moves is Movement.SAME:
        np.testing.assert_array_equal(y, x)
    elif record.moves is Movement.VIEW:
        np.testing.assert_array_equal(y.reshape(-1), x.reshape(-1))
    elif record.moves in (Movement.PERMUTED, Movement.CONVERTED):
        np.testing.assert_array_equal(np.sort(y.reshape(-1)), np.sort(x.reshape(-1)))
    elif record.moves is Movement.PART:
        assert set(y.reshape(-1).tolist()) <= set(x.reshape(-1).tolist())
    elif record.moves is Movement.REPEATED:
        np.testing.assert_array_equal(np.unique(y), np.unique(x))
        assert y.size > x.size
    else:
        np.testing.assert_array_equal(y, np.concatenate(inputs))


@pytest.mark.parametrize("record", [item for item in records_with() if item.values[0].parameters])
def test_parameters_are_inputs_of_whole_numbers(record: Operator) -> None:
    """The exceptions are Pad's padding value, which is one number too, and Resize's regions and scales."""
    inputs = defs.get_schema(record.name, OPSET).inputs
    for position in record.parameters:
        assert position < len(inputs)
        assert record.name == "Pad" or "tensor(int64)" in inputs[position].types


@pytest.mark.parametrize("record", [item for item in OPERATORS.values() if item.axis is not None], ids=lambda r: r.name)
def test_the_axis_is_the_default_of_onnx(record: Operator) -> None:
    axis = defs.get_schema(record.name).attributes["axis"]
    assert axis.required or axis.default_value.i == record.axis


@pytest.mark.parametrize("record", [item for item in OPERATORS.values() if item.axes is not None], ids=lambda r: r.name)
def test_the_axes_are_an_input_of_onnx(record: Operator) -> None:
    assert record.axis is None
    assert defs.get_schema(record.name).inputs[record.axes or 0].name in ("axes", "axis")


def test_operators_with_an_axis_work_along_it() -> None:
    """Except Flatten, whose axis is where it divides the shape, and TensorScatter, whose batch it treats apart."""
    named = {name for name in OPERATORS if name in {item.name for item in defs.get_all_schemas()}}
    with_axis = {name for name in named if "axis" in defs.get_schema(name).attributes}
    assert (
        with_axis - {"Flatten", "TensorScatter"}
        == {record.name for record in OPERATORS.values() if record.axis is not None} & named
    )


@pytest.mark.parametrize("record", [item for item in records_with() if item.values[0].has_axes])
def test_rows_along_other_axes_are_computed_apart(record: Operator) -> None:
    """Rows in another order give the results in that order."""
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    if record.name == "OneHot":
        x = np.array([2, 0, 4])
    elif record.name == "Squeeze":
        x = x[:, :1]
    elif record.name == "DequantizeLinear":
        x = (x * 9).astype(np.int8)
    rest = ALONG_ONE.get(record.name, [])
    if record.name == "LayerNormalization":
        rest = [np.ones(SHAPE[1:], np.float32)]
    along = {} if record.axis is None else {"axis": 1}
    if record.axes is not None:
        rest = [*rest, np.array(1 if record.name == "CumSum" else [1])]
    order = np.array([2, 0, 1])
    inputs, permuted = [x, *rest], [x[order], *(item[order] if item.ndim == 2 else item for item in rest)]
    whole, rows = (run(record, arrays, along) for arrays in (inputs, permuted))
    np.testing.assert_array_equal(whole[order], rows)


def test_all_are_operators_of_onnx() -> None:
    known = {schema.name for schema in defs.get_all_schemas() if schema.domain == ""}
    assert set(OPERATORS) - known <= UNCHECKED
