# SPDX-License-Identifier: Apache-2.0
"""Gives a rewritten float32 model another activation type, with every cast written out (strong typing).

Rules, node by node in order:
- padfree operators and matrix products compute in the new type (their statistics and sums are float32 inside);
- reductions, softmax, norms, exponentials and logarithms that stand outside padfree operators stay float32, and so does
  what is computed element by element from their results, up to the next matrix product or padfree operator;
- a constant that the new type cannot hold (a mask's finfo.min, an epsilon of 1e-12) keeps the nodes that read it in
  float32 in the same way, and so does a weight of a matrix product that would overflow or vanish;
- products of positions and other whole numbers (rotary angles, as some exporters write them) stay float32;
- operators that have no such type in the model's opset stay float32 (bfloat16 convolutions before opset 22);
- nodes that make or read an activation known not to fit (see ranges.py) stay float32; PadfreeLayerNorm becomes standard
  operators for that, the other padfree operators are refused by name;
- graph inputs and outputs keep their type: results are float32 whatever the precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError, VerificationError
from ..files.model import Model, without_initializers
from ..files.weights import LARGE_BYTES, array_of, bytes_of_array
from ..operators import DOMAIN, opset_of, without_functions
from ..operators.functions import ACT_TYPES
from .blocks import blocks, finite_of, largest_of
from .element_types import check_element_types, infer_element_types, takes
from .halves import to_float, to_half
from .norm_nodes import standard_norm
from .output_casts import cast_output
from .ranges import LARGEST, unfit_reason

Floats = npt.NDArray[np.float32]

_FLOAT = TensorProto.FLOAT
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention"})
_FLOAT32_ONLY = frozenset(
    (
        *("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd"),
        *("ReduceLogSum", "ReduceLogSumExp", "CumSum", "Softmax", "LogSoftmax"),
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
        *("BatchNormalization", "LpNormalization", "Pow", "Sqrt", "Exp", "Log", "Reciprocal"),
        *("Range", "RandomNormal", "RandomUniform", "Resize"),
        *("Sin", "Cos", "Tan"),  # of angles far beyond 2 pi; and no bfloat16 before opset 22
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),  # their scales are exact numbers
        *("QLinearMatMul", "QLinearConv"),
    )
)
_ROUNDOFF: Mapping[str, float] = MappingProxyType({"fp16": 2.0**-11, "bf16": 2.0**-8})
_SMALLEST: Mapping[str, float] = MappingProxyType({"fp16": 2.0**-25, "bf16": 2.0**-134})  # half of the last step


def convert(model: Model, precision: str, unfit: Mapping[str, str] | None = None) -> Model:
    """A copy of a rewritten float32 model with activations and weights of type `precision`, without function bodies.

    Precision is "fp32" (nothing changes), "fp16" or "bf16". `unfit` are activations that it cannot hold, with the
    reasons. The result is checked: every weight against the original, and every node's types. Raises RewriteError for
    what the type cannot hold and for subgraphs, VerificationError when the result is not consistent.
    """
    if precision not in ACT_TYPES:
        raise RewriteError(f"precision is {precision!r}, allowed are {', '.join(ACT_TYPES)}; choose one of them")
    if precision == "fp32":
        return model.with_proto(without_functions(model.proto))
    result = Model(without_functions(_skeleton(model.proto)), model.weights.copy())
    for node in result.proto.graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise RewriteError(
                f"{node.op_type} '{node.name}' holds a subgraph, which precision {precision} does not allow; "
                f"choose precision fp32"
            )
    _Conversion(result, model, precision, dict(unfit or {})).run()
    check_element_types(result.proto, precision)
    check_weights(model, result, precision)
    return result


def _skeleton(model: ModelProto) -> ModelProto:
    """A copy whose initializers have name, type and shape alone."""
    result = without_initializers(model)
    for tensor in model.graph.initializer:
        result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return result


def round_to(values: Floats, precision: str) -> TensorProto:
    """A nameless tensor with the values rounded to nearest, ties to even; infinite beyond the largest number."""
    content = rounded(values, precision).tobytes()
    return TensorProto(data_type=ACT_TYPES[precision], dims=values.shape, raw_data=content)


def rounded(values: Floats, precision: str) -> npt.NDArray[Any]:
    """What `round_to` holds, as an array: of bf16 the bits."""
    if precision == "fp16":
        return to_half(values)
    bits = np.ascontiguousarray(values).view(np.uint32)
    result: npt.NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2")
    result[np.isnan(values)] = 0x7FC0
    return result.reshape(values.shape)  # a scalar had become 1-D


def to_float32(tensor: TensorProto, data: memoryview | None = None) -> Floats:
    """The values of a float tensor of any precision, of `data` where its message holds none.

    They may be those that the tensor holds, not to be written to.
    """
    return to_float(array_of(tensor, data))


def check_weights(original: Model, converted: Model, precision: str) -> None:
    """Checks that each converted weight is the original's, rounded. Raises VerificationError naming one that is not."""
    sources = {tensor.name: tensor for tensor in original.proto.graph.initializer}
    for tensor in converted.proto.graph.initializer:
        source = sources.get(tensor.name) or sources.get(tensor.name.removesuffix(f".{precision}"))
        if source is None or tensor.data_type == source.data_type:
            continue
        pairs = zip(blocks(original.array(source)), blocks(converted.array(tensor)), strict=True)
        far = sum(_far(to_float(a), to_float(b), precision) for a, b in pairs)
        if far:
            raise VerificationError(
                f"weight '{tensor.name}' is not the original rounded to {precision} ({far} of {math.prod(tensor.dims)} "
                f"values differ); this is a defect of padfree's conversion: please report it, or choose precision fp32"
            )


def _far(wanted: Floats, found: Floats, precision: str) -> int:
    """How many numbers are not what they are to be when rounded."""
    finite = np.isfinite(wanted)
    if finite.all():
        allowed = np.abs(wanted) * _ROUNDOFF[precision] + _SMALLEST[precision]
        return int((~(np.abs(found - wanted) <= allowed)).sum())
    equal = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return int((~equal[~finite]).sum()) + _far(wanted[finite], found[finite], precision)


class _Conversion:
    """Rewrites one model's graph in place, whose weights are those of `original` and are put in at the end."""

    def __init__(self, model: Model, original: Model, precision: str, unfit: dict[str, str]) -> None:
        self.model, self.graph, self.precision, self.unfit = model, model.proto.graph, precision, unfit
        self.original = original
        self.originals = {tensor.name: tensor for tensor in original.proto.graph.initializer}
        self._expand_norms()
        self.act, self.opset = ACT_TYPES[precision], opset_of(model.proto)
        self.types = infer_element_types(model.proto, "fp32")
        self.nodes: list[NodeProto] = []
        self.counts: set[str] = set()  # float32 tensors that were whole numbers, and what is made of them alone
        self.casts: set[str] = set()
        self.constants = {
            tensor.name: self.originals.get(tensor.name, tensor)
            for tensor in self.graph.initializer
            if tensor.data_type == _FLOAT
        }
        self.copies: dict[str, npt.NDArray[Any]] = {}  # converted constants by original name
        self.read_as_float32: set[str] = set()  # constants
        self.outputs = {item.name: item.type.tensor_type.elem_type for item in self.graph.output}
        multiplied = {name for node in self.graph.node if node.op_type in _PRODUCTS for name in node.input}
        self.tried: dict[str, npt.NDArray[Any]] = {}  # what product weights become, if they are read in the new type
        for name in sorted(multiplied & self.constants.keys()):
            values = self._values(name)
            content = rounded(values, precision)
            if reason := unfit_reason(values, precision, rounded=content):
                self.unfit[name] = reason
            else:
                self.tried[name] = content

    def _values(self, name: str) -> Floats:
        """Those of a constant."""
        return to_float(self.original.array(self.constants[name]))

    def _expand_norms(self) -> None:
        """Norms that make or read what does not fit become standard operators, which may be float32."""
        nodes = list(self.graph.node)
        del self.graph.node[:]
        for node in nodes:
            if node.op_type == "PadfreeLayerNorm" and self._is_unfit(node):
                made, constants = standard_norm(self.model.proto, node)
                self.graph.node.extend(made)
                self.graph.initializer.extend(constants)
            else:
                self.graph.node.append(node)

    def _is_unfit(self, node: NodeProto) -> bool:
        return any(name in self.unfit for name in (*node.input, *node.output))

    def run(self) -> None:
        for node in list(self.graph.node):
            if node.op_type == "Constant" and node.domain == "" and self.types[node.output[0]] == _FLOAT:
                self._lift_constant(node)
            else:
                self._convert(node)
        self._finish_outputs()
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        self._replace_constants()
        for item in list(self.graph.value_info):
            if item.name in self.types:
                item.type.tensor_type.elem_type = self.types[item.name]

    def _lift_constant(self, node: NodeProto) -> None:
        """A Constant node of floats becomes an initializer, which is converted like all others."""
        value = helper.get_attribute_value(node.attribute[0])
        tensor = TensorProto()
        if isinstance(value, TensorProto):
            tensor.CopyFrom(value)
        else:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32)))
        tensor.name = node.output[0]
        if tensor.name in self.outputs:
            self.nodes.append(node)
            return
        self.graph.initializer.append(tensor)
        self.constants[tensor.name] = tensor

    def _convert(self, node: NodeProto) -> None:
        floats = [name for name in node.input if name and self._is_float(name)]
        makes_float = any(name and self.types[name] == _FLOAT for name in node.output)
        if not floats and not makes_float:
            self.nodes.append(node)
            return
        target = self._type_for(node, floats)
        if node.op_type == "Cast" and node.domain == "":
            self._convert_cast(node, target)
            return
        for position, name in enumerate(node.input):
            if name and self._is_float(name):
                node.input[position] = self._as_type(name, target, node)
        for attribute in node.attribute:
            if attribute.name == "dtype" and attribute.i == _FLOAT:
                attribute.i = target
            if attribute.name == "value" and attribute.t.data_type == _FLOAT and target != _FLOAT:
                attribute.t.CopyFrom(round_to(to_float32(attribute.t), self.precision))
        if target == _FLOAT and self._reads_counts_alone(floats):
            self.counts.update(node.output)
        self._make(node, target)

    def _make(self, node: NodeProto, target: int) -> None:
        for name in node.output:
            if name and self.types[name] == _FLOAT:
                self.types[name] = target
        self.nodes.append(node)

    def _convert_cast(self, node: NodeProto, target: int) -> None:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == _FLOAT:
                attribute.i = target
        source = self.types.get(node.input[0], _FLOAT)
        if (source not in (_FLOAT, self.act, TensorProto.BOOL) and target == _FLOAT) or node.input[0] in self.counts:
            self.counts.update(node.output)
        if self._is_float(node.input[0]) and node.input[0] in self.constants:
            self.read_as_float32.add(node.input[0])
        self._make(node, target)

    def _type_for(self, node: NodeProto, floats: Iterable[str]) -> int:
        """The type in which a node computes."""
        if self._is_unfit(node):
            self._refuse_unfit(node)
            return _FLOAT
        if node.domain == DOMAIN:
            return self.act
        if node.domain != "" or node.op_type in _FLOAT32_ONLY or not takes(node, self.act, self.opset):
            return _FLOAT
        if node.op_type in _PRODUCTS:
            return _FLOAT if self._reads_counts_alone(floats) else self.act
        if node.op_type == "Cast":
            source = self.types[node.input[0]]
            # Whole numbers may be too large for the type; what was float already keeps its type.
            if source in (TensorProto.BOOL, self.act):
                return self.act
            return _FLOAT
        if node.op_type == "ConstantOfShape":
            value = [to_float32(attribute.t) for attribute in node.attribute if attribute.name == "value"]
            return self.act if all(self._fits(item) for item in value) else _FLOAT
        for name in floats:
            if name in self.constants:
                if not self._fits(self._values(name)):
                    return _FLOAT
            elif self.types[name] == _FLOAT:
                return _FLOAT
        return self.act

    def _reads_counts_alone(self, floats: Iterable[str]) -> bool:
        """Whether all that a node reads, constants aside, was whole numbers: positions, whose angles need digits."""
        read = [name for name in floats if name not in self.constants]
        return bool(read) and all(name in self.counts for name in read)

    def _fits(self, values: Floats) -> bool:
        """Whether a constant survives: nothing overflows, and single numbers keep their value but for rounding."""
        if largest_of(values) > LARGEST[self.precision]:
            return False
        if values.size > 1:
            return True
        finite = finite_of(values)
        found = to_float32(round_to(finite, self.precision))
        return bool(np.all(np.abs(found - finite) <= np.abs(finite) * _ROUNDOFF[self.precision]))

    def _is_float(self, name: str) -> bool:
        return name in self.constants or self.types[name] in (_FLOAT, self.act)

    def _as_type(self, name: str, target: int, reader: NodeProto) -> str:
        """The name under which a tensor can be read as `target`, after a Cast where needed."""
        if name in self.constants:
            return self._constant_as(name, target, reader)
        if self.types[name] == target:
            return name
        cast = f"{name}.to_{TensorProto.DataType.Name(target).lower()}"
        if cast not in self.casts:
            self.casts.add(cast)
            self.nodes.append(helper.make_node("Cast", [name], [cast], name=cast, to=target))
            self.types[cast] = target
        return cast

    def _constant_as(self, name: str, target: int, reader: NodeProto) -> str:
        if target == _FLOAT:
            self.read_as_float32.add(name)
            return name
        if name not in self.copies:
            values = self._values(name)
            self._refuse_overflow(name, values, reader)
            self.copies[name] = self.tried.pop(name) if name in self.tried else rounded(values, self.precision)
        return f"{name}.{self.precision}"

    def _refuse_unfit(self, node: NodeProto) -> None:
        name = next(item for item in (*node.input, *node.output) if item in self.unfit)
        if node.domain == DOMAIN:
            raise RewriteError(
                f"'{name}' of {node.op_type} '{node.name or node.output[0]}' {self.unfit[name]}, and this operator is "
                f"not kept in float32 by itself; choose precision bf16 or fp32"
            )

    def _refuse_overflow(self, name: str, values: Floats, reader: NodeProto) -> None:
        largest = largest_of(values)
        if largest > LARGEST[self.precision]:
            advice = "bf16 or fp32" if self.precision == "fp16" else "fp32"
            raise RewriteError(
                f"weight '{name}' of {reader.op_type} '{reader.name or reader.output[0]}' holds {largest:g}, "
                f"{self.precision} holds at most {LARGEST[self.precision]:g}; choose precision {advice}"
            )

    def _finish_outputs(self) -> None:
        """Outputs keep their type: what is made in the new type is cast under the output's name."""
        for name, wanted in self.outputs.items():
            if wanted != _FLOAT or self.types[name] == _FLOAT:
                continue
            inner = f"{name}.{self.precision}"
            cast_output(self.nodes, name, inner, f"{name}.to_float", _FLOAT)
            self.types[inner] = self.types[name]
            self.types[name] = _FLOAT

    def _replace_constants(self) -> None:
        """Each weight is stored once: in the new type under its own name, unless it is read as float32 too."""
        renamed = {f"{name}.{self.precision}": name for name in self.copies if name not in self.read_as_float32}
        for node in self.graph.node:
            for position, name in enumerate(node.input):
                if name in renamed:
                    node.input[position] = renamed[name]
        replaced = set(renamed.values())
        kept = [
            self.originals.get(tensor.name, tensor) for tensor in self.graph.initializer if tensor.name not in replaced
        ]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        for name in list(self.copies):
            copy, dims = f"{name}.{self.precision}", self.constants[name].dims
            content = self.copies.pop(name)  # which is not to be there twice
            tensor = self.graph.initializer.add(name=renamed.get(copy, copy), data_type=self.act, dims=dims)
            if content.nbytes >= LARGE_BYTES:
                self.model.weights.hold(tensor, bytes_of_array(content))
            else:
                tensor.raw_data = content.tobytes()
