# SPDX-License-Identifier: Apache-2.0
"""The nodes that round numbers: the standard's, onnxruntime's own, and TensorRT's, from before ONNX had e4m3.

ModelOpt and TransformerEngine export a torch model in FP8 with the operators TRT_FP8QuantizeLinear and
TRT_FP8DequantizeLinear of a domain 'trt': e4m3, without a zero point.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, TensorProto

from ...files import copy_message, replace_items
from ..newer_opsets import raise_opset
from ..skeleton import Names

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
TENSORRT = "trt"
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_OF_TENSORRT: Mapping[str, str] = {"TRT_FP8QuantizeLinear": QUANTIZE, "TRT_FP8DequantizeLinear": DEQUANTIZE}
QUANTIZERS = (QUANTIZE, *(name for name, role in _OF_TENSORRT.items() if role == QUANTIZE))
"""Operators that store numbers in fewer bits."""
_E4M3_OPSET, _E4M3_IR = 19, 9


def quantizes(node: NodeProto) -> bool:
    """Whether a node stores numbers in fewer bits, by a scale that it reads."""
    return _role(node) == QUANTIZE


def dequantizes(node: NodeProto) -> bool:
    """Whether a node makes floats of numbers that are stored in fewer bits."""
    return _role(node) == DEQUANTIZE


def of_tensorrt(node: NodeProto) -> bool:
    """Whether a node is one of TensorRT's own that are known here, whose type is e4m3."""
    return node.domain == TENSORRT and node.op_type in _OF_TENSORRT


def only_tensorrt_rounds(node: NodeProto) -> bool:
    """Whether a node is any of TensorRT's own, also those not known here: of int4, and of e4m3 in blocks."""
    return node.domain == TENSORRT and "uantize" in node.op_type


def _role(node: NodeProto) -> str | None:
    if of_tensorrt(node):
        return _OF_TENSORRT[node.op_type]
    return node.op_type if node.domain in _DOMAINS else None


def standard_rounding(model: ModelProto) -> ModelProto:
    """The model with the standard's nodes instead of TensorRT's own, which onnxruntime does not know.

    Itself where it has none. Raises RewriteError where a node has no equal in the first opset with e4m3.
    """
    if not any(of_tensorrt(node) for node in model.graph.node):
        return model
    result = copy_message(model)
    raise_opset(result, _E4M3_OPSET)
    result.ir_version = max(result.ir_version, _E4M3_IR)
    zero = Names(result.graph).fresh("e4m3_zero")
    result.graph.initializer.add(name=zero, data_type=TensorProto.FLOAT8E4M3FN, raw_data=b"\0")
    for node in result.graph.node:
        if of_tensorrt(node):
            node.op_type, node.domain = _OF_TENSORRT[node.op_type], ""
            node.input[:] = [*node.input[:2], zero]
    del result.graph.value_info[:]  # exporters write uint8 as the type of stored numbers
    drop_unused_domain(result)
    return result


def drop_unused_domain(model: ModelProto) -> None:
    """Takes the domain of TensorRT's own nodes out of the imports, where none of them is left."""
    if all(node.domain != TENSORRT for node in model.graph.node):
        replace_items(model.opset_import, (item for item in model.opset_import if item.domain != TENSORRT))
