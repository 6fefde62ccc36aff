# SPDX-License-Identifier: Apache-2.0
"""Files with QuantizeLinear and DequantizeLinear, as ModelOpt and onnxruntime write them, without these nodes.

Weights become the numbers that the file's stand for: those that training or rounding left. Activations lose their
rounding. What is to be in e4m3 again gets its scales from calibration (onnx_tools/fp8.py), on packed batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from ..files.model import Model
from ..files.weights import LARGE_BYTES, Weights

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DYNAMIC = "DynamicQuantizeLinear"
_STANDARD = ("", "ai.onnx")
_RANGES: Mapping[int, tuple[float, float]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
    TensorProto.FLOAT8E4M3FN: (-448, 448),
    TensorProto.FLOAT8E5M2: (-57344, 57344),
}
_NAMES: Mapping[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.FLOAT8E4M3FN: "e4m3",
    TensorProto.FLOAT8E5M2: "e5m2",
}

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Unquantized:
    """A model without Q/DQ, and what was taken out: of which types, how many weights and activations."""

    model: Model
    types: tuple[str, ...]
    weights: int
    activations: int

    def to_dict(self) -> dict[str, Any]:
        """As the metadata hold it."""
        return {"types": list(self.types), "weights": self.weights, "activations": self.activations}


def holds_quantization(model: ModelProto) -> bool:
    """Whether activations are rounded by QuantizeLinear and DequantizeLinear, one behind the other.

    Other files keep what they have: those whose weights alone are integers, those that compute with quantised numbers
    (QLinearMatMul, MatMulInteger), and those whose scales are of blocks, or of a batch (DynamicQuantizeLinear).
    """
    nodes = [node for node in model.graph.node if node.domain in _STANDARD]
    quantized = {name for node in nodes if node.op_type == QUANTIZE for name in node.output}
    readers = [node for node in nodes if quantized.intersection(node.input)]
    in_blocks = any(item.name == "block_size" and item.i for node in nodes for item in node.attribute)
    computed = {name for node in nodes if node.op_type != "Constant" for name in node.output}
    computed |= {value.name for value in model.graph.input} - {item.name for item in model.graph.initializer}
    rounds = any(node.op_type == QUANTIZE and node.input[0] in computed for node in nodes)
    known = all(node.op_type == DEQUANTIZE for node in readers) and all(
        node.input[0] in quantized or node.input[0] not in computed for node in nodes if node.op_type == DEQUANTIZE
    )
    return rounds and known and not in_blocks and all(node.op_type != _DYNAMIC for node in nodes)


def without_quantization(model: Model) -> Unquantized:
    """The model without these nodes.

    Raises RewriteError for scales that are no positive finite constants, for blocks, and for a DequantizeLinear that
    reads neither a weight nor a QuantizeLinear.
    """
    return _Removal(model).run()


@dataclass(frozen=True)
class _Rounding:
    """What a pair of nodes does to numbers: scale and zero point, along an axis where there are several."""

    kind: int
    scale: Array
    zero: Array
    axis: int

    def broadcast(self, values: Array, rank: int) -> Array:
        """Scales or zero points as they go over a tensor."""
        if values.size == 1:
            return values.reshape(())
        shape = [1] * rank
        shape[self.axis] = values.size
        return values.reshape(shape)

    def dequantized(self, stored: Array) -> Array:
        """float32 of what is stored."""
        scale, zero = (self.broadcast(item, stored.ndim).astype(np.float32) for item in (self.scale, self.zero))
        values: Array = (stored.astype(np.float32) - zero) * scale
        return values

    def rounded(self, values: Array) -> Array:
        """float32 values, quantised and dequantised: to nearest even, cut off at the type's ends."""
        scale, zero = (self.broadcast(item, values.ndim).astype(np.float32) for item in (self.scale, self.zero))
        low, high = _RANGES[self.kind]
        scaled = values.astype(np.float32) / scale
        if self.kind in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2):
            stored = np.clip(scaled, low, high).astype(helper.tensor_dtype_to_np_dtype(self.kind))
        else:
            stored = np.clip(np.rint(scaled) + zero, low, high)
        return self.dequantized(stored)


@dataclass
class _Removal:
    """Takes the nodes out of a copy of one model."""

    source: Model
    _weights: dict[str, Array] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.source.proto.graph
        self._initializers = {item.name: item for item in graph.initializer}
        self._constants = {
            node.output[0]: helper.get_attribute_value(node.attribute[0])
            for node in graph.node
            if node.op_type == "Constant" and node.domain in _STANDARD and node.attribute[0].name == "value"
        }
        self._makers = {name: node for node in graph.node for name in node.output}

    def run(self) -> Unquantized:
        """Decides for every DequantizeLinear, then writes the graph anew."""
        kinds, activations = Counter[str](), 0
        for node in self.source.proto.graph.node:
            if node.op_type != DEQUANTIZE or node.domain not in _STANDARD:
                continue
            rounding = self._rounding(node)
            kinds[_NAMES[rounding.kind]] += 1
            maker = self._makers.get(node.input[0])
            if maker is None or maker.op_type == "Constant":
                self._weights[node.output[0]] = rounding.dequantized(self._values(node, 0))
            elif maker.op_type == QUANTIZE and self._is_constant(maker.input[0]):
                self._weights[node.output[0]] = rounding.rounded(self._values(maker, 0))
            elif maker.op_type == QUANTIZE:
                self._renamed[node.output[0]] = maker.input[0]
                activations += 1
            else:
                raise _error(node, f"reads what {maker.op_type} '{maker.name}' makes, not QuantizeLinear")
        types = tuple(name for name, _ in kinds.most_common())
        return Unquantized(self._rewritten(), types, len(self._weights), activations)

    def _is_constant(self, name: str) -> bool:
        return name in self._initializers or name in self._constants

    def _values(self, node: NodeProto, position: int) -> Array:
        """A constant input."""
        name = node.input[position]
        if name in self._initializers:
            return np.asarray(self.source.array(self._initializers[name]))
        if name in self._constants:
            return np.asarray(numpy_helper.to_array(self._constants[name]))
        raise _error(node, f"has the input '{name}', which is computed: only constant scales are understood")

    def _kind(self, name: str) -> int:
        tensor = self._initializers.get(name, self._constants.get(name))
        return int(tensor.data_type) if tensor is not None else 0

    def _rounding(self, node: NodeProto) -> _Rounding:
        """Of a DequantizeLinear."""
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if attributes.get("block_size"):
            raise _error(node, f"has scales for blocks of {attributes['block_size']} numbers")
        scale = self._values(node, 1)
        if not (np.isfinite(scale.astype(np.float64)) & (scale.astype(np.float64) > 0)).all():
            raise _error(node, f"has the scale {scale.ravel()[0]:g}, allowed are finite numbers above 0")
        has_zero = len(node.input) > 2 and node.input[2]
        zero = self._values(node, 2) if has_zero else np.zeros((), np.float32)
        kind = self._kind(node.input[2]) if has_zero else self._stored_kind(node)
        if kind not in _RANGES:
            raise _error(node, f"has numbers of type {TensorProto.DataType.Name(kind)}, known are {_known()}")
        return _Rounding(kind, scale, zero, int(attributes.get("axis", 1)))

    def _stored_kind(self, node: NodeProto) -> int:
        """The type of what a DequantizeLinear without zero point reads."""
        maker = self._makers.get(node.input[0])
        if maker is None or maker.op_type != QUANTIZE:
            return self._kind(node.input[0])
        given = {item.name: helper.get_attribute_value(item) for item in maker.attribute}
        if given.get("output_dtype"):
            return int(given["output_dtype"])
        return self._kind(maker.input[2]) if len(maker.input) > 2 and maker.input[2] else int(TensorProto.UINT8)

    def _rewritten(self) -> Model:
        """The model with the readers of what is gone reading what it was made of."""
        result, weights = ModelProto(), self.source.weights.copy()
        result.CopyFrom(self.source.proto)
        for node in result.graph.node:
            for position, name in enumerate(node.input):
                node.input[position] = self._followed(name)
        gone = {*self._weights, *self._renamed}
        nodes = [node for node in result.graph.node if not gone.intersection(node.output)]
        outputs = {value.name for value in result.graph.output}
        nodes += [
            helper.make_node("Identity", [self._followed(name)], [name]) for name in self._renamed if name in outputs
        ]
        read = {name for node in nodes for name in node.input} | outputs
        nodes = [node for node in nodes if node.op_type != QUANTIZE or read.intersection(node.output)]
        read = {name for node in nodes for name in node.input} | outputs
        del result.graph.node[:]
        result.graph.node.extend(nodes)
        kept = [item for item in result.graph.initializer if item.name in read]
        del result.graph.initializer[:]
        result.graph.initializer.extend(kept)
        del result.graph.value_info[:]
        for name, values in self._weights.items():
            _add(result, weights, name, values)
        return Model(result, weights)

    def _followed(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name


def _add(model: ModelProto, weights: Weights, name: str, values: Array) -> None:
    """A float32 initializer, beside the message where it is large."""
    tensor = model.graph.initializer.add(name=name)
    if values.nbytes >= LARGE_BYTES:
        weights.hold_array(tensor, np.ascontiguousarray(values, np.float32))
    else:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))


def _known() -> str:
    return ", ".join(_NAMES.values())


def _error(node: NodeProto, reason: str) -> RewriteError:
    name = node.name or (node.output[0] if node.output else "")
    return RewriteError(
        f"node '{name}' ({node.op_type}) {reason}; rewrite the float model that the file was quantised from, with "
        "--precision fp8 and --calibrate for e4m3"
    )
