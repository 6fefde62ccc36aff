# SPDX-License-Identifier: Apache-2.0
"""Files with QuantizeLinear and DequantizeLinear, as ModelOpt and onnxruntime write them, without these nodes.

`rounding_nodes` has what counts as such a node.

Weights become the numbers that the file's stand for: those that training or rounding left. Activations lose their
rounding. What is to be in e4m3 again gets its scales from calibration (onnx_tools/fp8.py), on packed batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from ..files.model import Model
from ..files.weights import LARGE_BYTES, Weights
from .constants import Constants
from .rounding_nodes import dequantizes, drop_unused_domain, of_tensorrt, quantizes
from .smoothed import fold_scales

_DYNAMIC = "DynamicQuantizeLinear"
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
    """Whether activations or weights are rounded by QuantizeLinear and DequantizeLinear, one behind the other.

    Other files keep what they have: those whose weights alone are stored as integers, those that compute with quantised
    numbers (QLinearMatMul, MatMulInteger), and those whose scales are of blocks, or of a batch (DynamicQuantizeLinear).
    """
    nodes = list(model.graph.node)
    quantized = {name for node in nodes if quantizes(node) for name in node.output}
    readers = [node for node in nodes if quantized.intersection(node.input)]
    in_blocks = any(item.name == "block_size" and item.i for node in nodes for item in node.attribute)
    computed = {name for node in nodes if node.op_type not in ("Constant", "Identity") for name in node.output}
    computed |= {value.name for value in model.graph.input} - {item.name for item in model.graph.initializer}
    known = all(dequantizes(node) for node in readers) and all(
        node.input[0] in quantized or node.input[0] not in computed for node in nodes if dequantizes(node)
    )
    return bool(quantized) and known and not in_blocks and all(node.op_type != _DYNAMIC for node in nodes)


def without_quantization(model: Model) -> Unquantized:
    """The model without these nodes, and with the factors of SmoothQuant in the weights behind them.

    Raises RewriteError for scales of weights that are no positive finite constants, for blocks, for numbers that are
    quantised by one scale and dequantised by another, and for a DequantizeLinear that reads neither a weight nor a
    QuantizeLinear.
    """
    found = _Removal(model).run()
    return replace(found, model=fold_scales(found.model))


def without_rounding(model: Model) -> Unquantized:
    """The model without these nodes at activations; weights stay as the file has them.

    Raises RewriteError as without_quantization.
    """
    return _Removal(model, keeps_weights=True).run()


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
    keeps_weights: bool = False
    _weights: dict[str, Array] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._constants = Constants(self.source)
        self._makers = {name: node for node in self.source.proto.graph.node for name in node.output}

    def run(self) -> Unquantized:
        """Decides for every DequantizeLinear, then writes the graph anew."""
        kinds, activations, weights = Counter[str](), 0, 0
        for node in self.source.proto.graph.node:
            if not dequantizes(node):
                continue
            rounding = self._rounding(node)
            kinds[_NAMES[rounding.kind]] += 1
            maker = self._makers.get(node.input[0])
            if maker is not None and quantizes(maker):
                self._check_same_scale(maker, node)
                if maker.input[0] not in self._constants:
                    self._renamed[node.output[0]] = maker.input[0]
                    activations += 1
                    continue
            elif node.input[0] not in self._constants:
                raise _error(node, f"reads '{node.input[0]}', which is no weight and not what a QuantizeLinear makes")
            _check_scale(node, rounding.scale, np.isfinite(rounding.scale))
            weights += 1
            if self.keeps_weights:
                continue
            if maker is not None and quantizes(maker):
                self._weights[node.output[0]] = rounding.rounded(self._values(maker, 0))
            else:
                self._weights[node.output[0]] = rounding.dequantized(self._values(node, 0))
        types = tuple(name for name, _ in kinds.most_common())
        return Unquantized(self._rewritten(), types, weights, activations)

    def _check_same_scale(self, quantize: NodeProto, dequantize: NodeProto) -> None:
        """Two scales, or zero points, multiply numbers or shift them."""
        for place, what in ((1, "scale"), (2, "zero point")):
            a, b = (node.input[place] if len(node.input) > place else "" for node in (quantize, dequantize))
            values = [self._values(node, place) if name else 0 for node, name in ((quantize, a), (dequantize, b))]
            if a != b and not np.equal(*(np.asarray(item, np.float32) for item in values)).all():
                raise _error(dequantize, f"has another {what} than '{quantize.name}' ({quantize.op_type}) ahead of it")

    def _values(self, node: NodeProto, position: int) -> Array:
        """A constant input."""
        values = self._constants.array(node.input[position])
        if values is None:
            name = node.input[position]
            raise _error(node, f"has the input '{name}', which is computed: only constant scales are understood")
        return values

    def _rounding(self, node: NodeProto) -> _Rounding:
        """Of a DequantizeLinear."""
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if attributes.get("block_size"):
            raise _error(node, f"has scales for blocks of {attributes['block_size']} numbers")
        scale = self._values(node, 1).astype(np.float32)
        # Scales of activations may be infinite, as ModelOpt's are of masks that hold -inf: they are not needed.
        _check_scale(node, scale, scale > 0)
        has_zero = len(node.input) > 2 and node.input[2]
        zero = self._values(node, 2) if has_zero else np.zeros((), np.float32)
        kind = self._constants.kind(node.input[2]) if has_zero else self._stored_kind(node)
        if kind not in _RANGES:
            raise _error(node, f"has numbers of type {TensorProto.DataType.Name(kind)}, known are {_known()}")
        return _Rounding(kind, scale, zero, int(attributes.get("axis", 1)))

    def _stored_kind(self, node: NodeProto) -> int:
        """The type of what a DequantizeLinear without zero point reads."""
        if of_tensorrt(node):
            return int(TensorProto.FLOAT8E4M3FN)
        maker = self._makers.get(node.input[0])
        if maker is None or not quantizes(maker):
            return self._constants.kind(node.input[0])
        given = {item.name: helper.get_attribute_value(item) for item in maker.attribute}
        if given.get("output_dtype"):
            return int(given["output_dtype"])
        return (
            self._constants.kind(maker.input[2]) if len(maker.input) > 2 and maker.input[2] else int(TensorProto.UINT8)
        )

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
        nodes = [node for node in nodes if not quantizes(node) or read.intersection(node.output)]
        read = {name for node in nodes for name in node.input} | outputs
        del result.graph.node[:]
        result.graph.node.extend(nodes)
        kept = [item for item in result.graph.initializer if item.name in read]
        del result.graph.initializer[:]
        result.graph.initializer.extend(kept)
        del result.graph.value_info[:]
        drop_unused_domain(result)
        for name, values in self._weights.items():
            _add(result, weights, name, values)
        return Model(result, weights)

    def _followed(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name


def _check_scale(node: NodeProto, scale: Array, right: Array) -> None:
    """Raises RewriteError naming the first of the scales that is not right."""
    if not right.all():
        raise _error(node, f"has the scale {scale[~right].flat[0]:g}, allowed are finite numbers above 0")


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
