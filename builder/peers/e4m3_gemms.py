# SPDX-License-Identifier: Apache-2.0
"""GEMMs in e4m3 as ModelOpt writes them, for TensorRT's own kernels, with QuantizeLinear and DequantizeLinear.

Activations have one scale per tensor, weights one per output feature. A weight is stored as e4m3 [N,K], with
DequantizeLinear and Transpose after it. Scales of activations come from the measured batch, as ours do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from padfree.onnx_tools.eight_bits import OPSET
from padfree.onnx_tools.files import MessageBuilder, Model
from padfree.onnx_tools.importing import raise_opset
from padfree.onnx_tools.quantization import LARGEST, MARGIN, Feeds, activation_scale, largest_numbers, narrow

from ..errors import BuildError

MULTIPLE = 16
"""What K and N of GEMMs in e4m3 must be multiples of."""
_E4M3 = TensorProto.FLOAT8E4M3FN
_STEM = "e4m3_products"
_LEAST_HALF = np.finfo(np.float16).smallest_subnormal

Scales = Mapping[str, float]


def activation_scales(model: ModelProto, precision: str, batches: Sequence[Feeds], *, attention: bool) -> Scales:
    """The scale of every activation that a GEMM multiplies, by its name.

    Args:
        model: the original in fp32, or a rewritten one.
        precision: its activations' type.
        batches: inputs of the model.
        attention: whether GEMMs of two activations count, too.

    Raises:
        BuildError: there is no GEMM for e4m3.
    """
    constants = _constants(model)
    tensors = dict.fromkeys(
        name for node in _matmuls(model, constants, attention) for name in _factors(node, constants)
    )
    if not tensors:
        raise BuildError(f"the model has no GEMM with K and N in multiples of {MULTIPLE}; measure it in fp16")
    largest = largest_numbers(Model.of(model), precision, list(tensors), batches, lambda: None)
    return {name: activation_scale(float(value), MARGIN) for name, value in largest.items()}


def with_e4m3_gemms(model: ModelProto, scales: Scales, *, attention: bool) -> ModelProto:
    """A copy of a model in fp16 whose GEMMs read what QuantizeLinear and DequantizeLinear made.

    Args:
        model: in fp16; its tensors are named as in the model that `scales` was computed of.
        scales: from activation_scales.
        attention: as for activation_scales.

    Raises:
        BuildError: a GEMM's activation has no scale.
    """
    result = ModelProto()
    result.CopyFrom(model)
    raise_opset(result, OPSET)
    constants, changes = _constants(result), _Changes()
    nodes = list[NodeProto]()
    chosen_names = {node.output[0] for node in _matmuls(result, constants, attention)}
    for node in result.graph.node:
        if node.output[0] in chosen_names:
            for position, name in enumerate(node.input):
                if name in constants:
                    node.input[position] = changes.weight(name, numpy_helper.to_array(constants[name]))
                elif name in scales:
                    node.input[position] = changes.activation(name, scales[name])
                else:
                    raise BuildError(
                        f"GEMM '{node.name}' reads '{name}', which has no scale, as conversion to fp16 renamed it; "
                        "leave the peer out"
                    )
            nodes += changes.take_nodes()
        nodes.append(node)
    names_read = {name for node in nodes for name in node.input}
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    initializers = [item for item in result.graph.initializer if item.name in names_read]
    del result.graph.initializer[:]
    result.graph.initializer.extend([*initializers, *changes.graph.initializer])
    return result


class _Changes(MessageBuilder):
    """Collects constants, and the nodes that must come before a GEMM."""

    def __init__(self) -> None:
        super().__init__()
        self._names = dict[str, str]()

    def take_nodes(self) -> list[NodeProto]:
        """The nodes since the last call."""
        nodes = [*self.graph.node]
        del self.graph.node[:]
        return nodes

    def activation(self, name: str, scale: float) -> str:
        """One pair of nodes for all readers of a tensor."""
        if name not in self._names:
            scale_name = self.constant(scale, np.float16, f"{_STEM}/{name}_scale")
            zero = self._e4m3(f"{name}_zero", np.zeros((), np.uint8))
            stored_name = f"{_STEM}/{name}_stored"
            self.op("QuantizeLinear", name, scale_name, zero, output=stored_name)
            rounded = f"{_STEM}/{name}_rounded"
            self._names[name] = self.op("DequantizeLinear", stored_name, scale_name, zero, output=rounded)
        return self._names[name]

    def weight(self, name: str, values: npt.NDArray[Any]) -> str:
        """[K,N] as e4m3 [N,K], scaled and transposed."""
        if name not in self._names:
            rows = np.ascontiguousarray(values.astype(np.float32).T)
            scale = _row_scales(rows)
            scaled = (rows / scale[:, np.newaxis]).astype(np.float32)
            stored_name = self._e4m3(f"{name}_stored", narrow(scaled))
            scale_name = self.constant(scale, np.float16, f"{_STEM}/{name}_scale")
            zeros = self._e4m3(f"{name}_zero", np.zeros(len(scale), np.uint8))
            rows_name = f"{_STEM}/{name}_rows"
            wide = self.op("DequantizeLinear", stored_name, scale_name, zeros, output=rows_name, axis=0)
            self._names[name] = self.op("Transpose", wide, output=f"{_STEM}/{name}_rounded", perm=[1, 0])
        return self._names[name]

    def _e4m3(self, name: str, values: npt.NDArray[Any]) -> str:
        """A constant of bytes, or of e4m3."""
        tensor = self.graph.initializer.add(name=f"{_STEM}/{name}", data_type=_E4M3, dims=values.shape)
        tensor.raw_data = values.tobytes()
        return str(tensor.name)


def _row_scales(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """A scale per row in fp16, rounded up: the largest number stays within e4m3."""
    exact = np.abs(rows).max(axis=1, initial=0.0) / np.float32(LARGEST)
    scale = exact.astype(np.float16)
    scale = np.where(scale < exact, np.nextafter(scale, np.float16(np.inf)), scale)
    result: npt.NDArray[np.float16] = np.maximum(scale, _LEAST_HALF).astype(np.float16)
    return result


def _constants(model: ModelProto) -> dict[str, TensorProto]:
    constants = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    return constants


def _matmuls(model: ModelProto, constants: Mapping[str, TensorProto], attention: bool) -> Iterator[NodeProto]:
    """MatMul of an activation by a weight [K,N], and with `attention` those of two activations."""
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
            continue
        factors = _factors(node, constants)
        if len(factors) == 2 and attention:
            yield node
        elif factors == [node.input[0]]:
            dims = constants[node.input[1]].dims
            if len(dims) == 2 and not any(dim % MULTIPLE for dim in dims):
                yield node


def _factors(node: NodeProto, constants: Mapping[str, TensorProto]) -> list[str]:
    return [name for name in node.input if name not in constants]
