# SPDX-License-Identifier: Apache-2.0
"""Binds inputs of an exported model to numbers: it no longer has these inputs then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto, helper, numpy_helper
from padfree.contract.names import FIXED_METADATA_KEY

from ..errors import RewriteError
from ..files import MessageBuilder, copy_message, fed_inputs, fixed_entry, replace_items
from .skeleton import Names

InputNumber = int | float


def bind_inputs(model: ModelProto, values: Mapping[str, InputNumber]) -> ModelProto:
    """A copy of an exported model in which every element of some inputs is a number; its metadata has the numbers.

    Axes of an input that are not fixed get the lengths of the same axes of the first remaining input that has them.

    Args:
        model: the exported model.
        values: numbers by input.

    Raises:
        RewriteError: there is no such input, its type has no such number, or nothing tells how long its axes are.
    """
    result = copy_message(model)
    inputs = {value.name: value for value in fed_inputs(model)}
    for name in values:
        if name not in inputs:
            raise RewriteError(f"--fix {name}: is no input of the model; its inputs are {', '.join(inputs)}; name one")
    staying = [value for name, value in inputs.items() if name not in values]
    names, nodes = Names(result.graph), list[NodeProto]()
    for name, number in values.items():
        array = np.asarray(number_of(inputs[name], number))
        nodes += _bound(result, inputs[name], array, staying, names)
    replace_items(result.graph.input, (value for value in result.graph.input if value.name not in values))
    replace_items(result.graph.node, [*nodes, *result.graph.node])
    values_by_name = {**fixed_entry(model), **values}
    replace_items(result.metadata_props, (item for item in result.metadata_props if item.key != FIXED_METADATA_KEY))
    result.metadata_props.add(key=FIXED_METADATA_KEY, value=json.dumps(values_by_name))
    return result


def number_of(value: ValueInfoProto, number: InputNumber) -> npt.NDArray[np.generic]:
    """The number as an element of an input. Raises RewriteError where its type has no such number."""
    kind = value.type.tensor_type.elem_type
    dtype = np.dtype(np.bool_) if kind == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(kind)
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(number).astype(dtype)
        same = bool(result == number) or (np.issubdtype(dtype, np.floating) and bool(np.isfinite(result)))
    except OverflowError:
        result, same = np.zeros((), dtype), False
    if kind == TensorProto.STRING or not same:
        name = TensorProto.DataType.Name(kind)
        raise RewriteError(
            f"--fix {value.name}={number}: the input is {name}, which has no such number; give one that it has"
        )
    return result


def _bound(
    model: ModelProto,
    value: ValueInfoProto,
    number: npt.NDArray[np.generic],
    staying: Sequence[ValueInfoProto],
    names: Names,
) -> list[NodeProto]:
    """The nodes that make an input's tensor, under its name; their constants are added to the model."""
    dims = list(value.type.tensor_type.shape.dim)

    def constant(array: npt.NDArray[np.generic], stem: str) -> str:
        name = names.fresh(f"{value.name}_{stem}")
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    if all(dim.dim_value for dim in dims):
        whole = np.full([dim.dim_value for dim in dims], number, number.dtype)
        model.graph.initializer.append(numpy_helper.from_array(whole, value.name))
        return []
    like = next((item for item in staying if _tells(item, dims)), None)
    if like is None:
        raise RewriteError(
            f"--fix {value.name}: no other input tells how long its {len(dims)} axes are; export the model with the "
            "number in it"
        )
    new, sizes = MessageBuilder(), list[str]()
    shape = new.op("Shape", like.name, output=names.fresh(f"{value.name}_shape"))
    for axis, dim in enumerate(dims):
        if dim.dim_value:
            sizes.append(constant(np.asarray([dim.dim_value], np.int64), "size"))
            continue
        index = constant(np.asarray([axis], np.int64), "axis")
        sizes.append(new.op("Gather", shape, index, output=names.fresh(f"{value.name}_size"), axis=0))
    target = new.op("Concat", *sizes, output=names.fresh(f"{value.name}_target"), axis=0)
    new.op("Expand", constant(number.reshape(1), "number"), target, output=value.name)
    new.graph.node[-1].name = names.fresh(f"{value.name}_bound")
    return list(new.graph.node)


def _tells(item: ValueInfoProto, dims: Sequence[TensorShapeProto.Dimension]) -> bool:
    """Whether an input has all the open axes of a shape, and does not fix them."""
    own = item.type.tensor_type.shape.dim
    open_axes = [axis for axis, dim in enumerate(dims) if not dim.dim_value]
    return max(open_axes) < len(own) and not any(own[axis].dim_value for axis in open_axes)
