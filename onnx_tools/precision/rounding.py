# SPDX-License-Identifier: Apache-2.0
"""Half precision on a CPU: the graph computes in fp32 and rounds every tensor to the type that it has on a GPU.

onnxruntime lacks most fp16 and bf16 kernels on the CPU. Where it has none it puts casts around whole groups of nodes,
inside which nothing overflows. Here every half precision tensor is rounded right where it is made, so that whatever
overflows or loses its digits on a GPU does so here. Sums inside one operator are still fp32, and rows that a norm
gives in e4m3 are rounded once. Weights outside of the message stay in half precision until a node reads them, so that
they are never all in memory in both types; those of large models are deferred, as float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from ..files import LARGE_MODEL_BYTES, DeferredData, Model, Weights, of_bfloat16, without_initializers
from ..operators import with_functions, without_functions
from .element_types import infer_element_types
from .halves import to_float
from .widen import widen

HALF_TYPES: Mapping[str, int] = MappingProxyType({"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16})


def with_rounding(model: Model, precision: str) -> Model:
    """A copy of a rewritten model that computes in fp32 and rounds tensors of type `precision` where they are made."""
    half = HALF_TYPES[precision]
    plain = without_functions(model.proto)
    types = infer_element_types(plain, precision)
    halves = [tensor for tensor in plain.graph.initializer if tensor.data_type == half and tensor in model.weights]
    wide = widen(model.with_proto(_without(plain, halves)))
    result, weights = wide.proto, wide.weights.copy()
    nodes = [*_widen(result, halves, model.weights, weights), *result.graph.node]
    del result.graph.node[:]
    for node in nodes:
        rounded = [(position, name) for position, name in enumerate(node.output) if name and types[name] == half]
        for position, name in rounded:
            node.output[position] = f"{name}.exact"
        result.graph.node.append(node)
        for _, name in rounded:
            result.graph.node.append(helper.make_node("Cast", [f"{name}.exact"], [f"{name}.rounded"], to=half))
            result.graph.node.append(helper.make_node("Cast", [f"{name}.rounded"], [name], to=TensorProto.FLOAT))
    return Model(with_functions(result), weights)


def _without(model: ModelProto, left_out: list[TensorProto]) -> ModelProto:
    """A copy without some of its initializers."""
    names = {tensor.name for tensor in left_out}
    result = without_initializers(model)
    result.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name not in names)
    return result


def _widen(model: ModelProto, halves: list[TensorProto], source: Weights, target: Weights) -> list[NodeProto]:
    """Puts weights into a model; returns nodes that cast to fp32 the weights that keep their type."""
    nodes = list[NodeProto]()
    sizes = [4 * math.prod(tensor.dims) for tensor in halves]
    is_large = sum(sizes) > LARGE_MODEL_BYTES or any(
        isinstance(source.held_for(tensor), DeferredData) for tensor in halves
    )
    for tensor, size in zip(halves, sizes, strict=True):
        data = source.held_for(tensor)
        assert data is not None
        if is_large:
            wide = model.graph.initializer.add(name=tensor.name, data_type=TensorProto.FLOAT, dims=tensor.dims)
            rows = partial(_wide_rows, tensor, data) if _is_table(data) else None
            target.hold(wide, DeferredData(size, partial(_wide, tensor, source), rows=rows))
            continue
        name = f"{tensor.name}.half"
        target.hold(model.graph.initializer.add(name=name, data_type=tensor.data_type, dims=tensor.dims), data)
        nodes.append(helper.make_node("Cast", [name], [tensor.name], f"{name}.to_float", to=TensorProto.FLOAT))
    return nodes


def _wide(tensor: TensorProto, source: Weights) -> npt.NDArray[np.float32]:
    data = source.data_of(tensor)
    assert data is not None
    return _numbers(tensor, np.frombuffer(data, np.uint16).reshape(tensor.dims))


def _wide_rows(
    tensor: TensorProto, data: memoryview | DeferredData, numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Only these rows of a table."""
    if isinstance(data, memoryview):
        return _numbers(tensor, np.frombuffer(data, np.uint16).reshape(tensor.dims)[numbers])
    assert data.rows is not None
    return _numbers(tensor, data.rows(numbers).view(np.uint16))


def _is_table(data: memoryview | DeferredData) -> bool:
    return isinstance(data, memoryview) or data.rows is not None


def _numbers(tensor: TensorProto, bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return of_bfloat16(bits) if tensor.data_type == TensorProto.BFLOAT16 else to_float(bits.view(np.float16))
