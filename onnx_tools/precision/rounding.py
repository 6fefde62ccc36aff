# SPDX-License-Identifier: Apache-2.0
"""Half precision on a CPU: the graph computes in fp32 and rounds every tensor to the type that it has on a GPU.

onnxruntime's CPU lacks most fp16 and bf16 kernels, and where it has none it puts casts around whole groups of nodes,
inside which nothing overflows. Here every half precision tensor is rounded right where it is made, so that what
overflows or loses its digits on a GPU does so here. Sums inside one operator are still fp32, and rows that a norm
gives in e4m3 are rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from onnx import TensorProto, helper

from ..files.model import Model
from ..operators import with_functions, without_functions
from .element_types import infer_element_types
from .widen import widen

HALF_TYPES: Mapping[str, int] = MappingProxyType({"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16})


def with_rounding(model: Model, precision: str) -> Model:
    """A copy of a rewritten model that computes in fp32 and rounds what has the type `precision` where it is made."""
    half = HALF_TYPES[precision]
    plain = without_functions(model.proto)
    types = infer_element_types(plain, precision)
    wide = widen(model.with_proto(plain))
    result = wide.proto
    nodes = list(result.graph.node)
    del result.graph.node[:]
    for node in nodes:
        rounded = [(position, name) for position, name in enumerate(node.output) if name and types[name] == half]
        for position, name in rounded:
            node.output[position] = f"{name}.exact"
        result.graph.node.append(node)
        for _, name in rounded:
            result.graph.node.append(helper.make_node("Cast", [f"{name}.exact"], [f"{name}.rounded"], to=half))
            result.graph.node.append(helper.make_node("Cast", [f"{name}.rounded"], [name], to=TensorProto.FLOAT))
    return wide.with_proto(with_functions(result))
