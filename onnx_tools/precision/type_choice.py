# SPDX-License-Identifier: Apache-2.0
"""The type that each node of a half precision graph computes in: the rules that precision.py lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..analysis import is_standard, node_name
from ..errors import RewriteError
from ..operators import ACT_TYPES, DOMAIN
from .constants import HalfConstants, float_values
from .element_types import takes
from .rounded_weights import survives

_FLOAT = TensorProto.FLOAT
GEMM_OPERATORS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention"})
_FLOAT32_ONLY = frozenset(
    (
        *("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd"),
        *("ReduceLogSum", "ReduceLogSumExp", "CumSum", "Softmax", "LogSoftmax"),
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
        *("BatchNormalization", "LpNormalization", "Pow", "Sqrt", "Exp", "Log", "Reciprocal"),
        *("Range", "RandomNormal", "RandomUniform", "Resize"),
        *("Sin", "Cos", "Tan"),  # their angles may be far beyond 2 pi; and they have no bfloat16 before opset 22
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),  # their scales are exact numbers
        *("QLinearMatMul", "QLinearConv"),
    )
)


class TypeChoice:
    """Chooses a type for one node after the other, in their order.

    Args:
        precision: the new type, "fp16" or "bf16".
        opset: the model's.
        constants: the model's.
        types: the current types of tensors, by name.
        unfit: tensors that the new type cannot hold, with the reasons.
    """

    def __init__(
        self, precision: str, opset: int, constants: HalfConstants, types: Mapping[str, int], unfit: Mapping[str, str]
    ) -> None:
        self._precision, self._opset = precision, opset
        self._constants, self._types, self._unfit = constants, types, unfit
        self._act = ACT_TYPES[precision]
        self._counts: set[str] = set()  # float32 tensors that were whole numbers, and those made of them alone

    def of(self, node: gs.Node, floats: Iterable[str]) -> int:
        """The type that a node computes in, given the tensors of floats that it reads."""
        if any(tensor.name in self._unfit for tensor in (*node.inputs, *node.outputs)):
            self._refuse_unfit(node)
            return _FLOAT
        if node.domain == DOMAIN:
            return self._act
        if not is_standard(node, node.op) or node.op in _FLOAT32_ONLY or not takes(node.op, self._act, self._opset):
            return _FLOAT
        if node.op in GEMM_OPERATORS:
            return _FLOAT if self._reads_counts_alone(floats) else self._act
        if node.op == "Cast":
            # Whole numbers may be too large for the new type; floats keep their type.
            return self._act if self._types[node.inputs[0].name] in (TensorProto.BOOL, self._act) else _FLOAT
        if node.op == "ConstantOfShape":
            value = node.attrs.get("value")
            return self._act if value is None or survives(float_values(value), self._precision) else _FLOAT
        return self._act if all(self._is_half(name) for name in floats) else _FLOAT

    def _is_half(self, name: str) -> bool:
        """Whether a node that reads this tensor may compute in the new type."""
        if name in self._constants:
            return self._constants.survives(name)
        return self._types[name] != _FLOAT

    def _reads_counts_alone(self, floats: Iterable[str]) -> bool:
        """Whether a node reads only former whole numbers and constants: positions, whose angles need their digits."""
        float_names = [name for name in floats if name not in self._constants]
        return bool(float_names) and all(name in self._counts for name in float_names)

    def follow_counts(self, node: gs.Node, floats: Iterable[str], target: int) -> None:
        """Notes what a node that computes in `target` makes of whole numbers; before its outputs get that type."""
        if is_standard(node, "Cast"):
            source = self._types.get(node.inputs[0].name, _FLOAT)
            became_float = source not in (_FLOAT, self._act, TensorProto.BOOL) and target == _FLOAT
            is_count = became_float or node.inputs[0].name in self._counts
        else:
            is_count = target == _FLOAT and self._reads_counts_alone(floats)
        if is_count:
            self._counts.update(tensor.name for tensor in node.outputs)

    def _refuse_unfit(self, node: gs.Node) -> None:
        name = next(item.name for item in (*node.inputs, *node.outputs) if item.name in self._unfit)
        if node.domain == DOMAIN:
            raise RewriteError(
                f"'{name}' of {node.op} '{node_name(node)}' {self._unfit[name]}, and this operator is "
                f"not kept in float32 by itself; choose precision bf16 or fp32"
            )
