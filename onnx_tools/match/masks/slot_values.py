# SPDX-License-Identifier: Apache-2.0
"""What tensors hold in masked slots, as far as it is one known number, and whether they may be negative elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    ELEMENTWISE,
    OPERATORS,
    REORDERINGS,
    STANDARD_DOMAINS,
    Movement,
    NoRule,
    is_standard,
    moving,
    packed_form,
    present,
    producer,
    token_axis,
)
from ...analysis.symbolic import Analysis, Apply, Expr, Index, Number, axis_of, broadcast_expr
from ...analysis.symbolic.expr import ELEMENTWISE as ARITHMETIC
from ..values import Mask
from .mask import VERY_NEGATIVE

_UNARY: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "Cast": float,
        "Erf": lambda x: 0.0 if x == 0.0 else float("nan"),
        "Log": lambda x: float(np.log(x)),
        "Relu": lambda x: max(x, 0.0),
        "Sigmoid": lambda x: float(1 / (1 + np.exp(-x))),
        "Sign": lambda x: float(np.sign(x)),
        "Tanh": lambda x: float(np.tanh(x)),
    }
)
_MOVEMENTS = REORDERINGS | moving(Movement.PART, Movement.REPEATED)
_MAX_DEPTH = 40
LOWEST = -1e4
"""Hidden states and scores of trained models are far above it."""


class SlotValues:
    """Answers for the tensors [B,...,S,...] of one graph with its mask."""

    def __init__(self, analysis: Analysis, mask: Mask) -> None:
        self._analysis = analysis
        self._mask = mask
        self._values: dict[str, float | None] = {}

    def know(self, tensor: gs.Tensor, value: float) -> None:
        """Records what a tensor that is now made in another way holds in masked slots."""
        self._values[tensor.name] = value

    def at_masked(self, tensor: gs.Tensor, depth: int = _MAX_DEPTH) -> float | None:
        """The number that all elements in masked slots are; None where that is not known. Without a mask it is 0."""
        facts = self._analysis[tensor]
        scalar = facts.scalar()
        if scalar is not None or self._mask.source is None:
            return 0.0 if scalar is None else scalar
        sequence = token_axis(facts.shape)
        if sequence is None or depth == 0:
            return None
        if tensor.name not in self._values:
            value = self._of_expr(facts.expr, sequence)
            self._values[tensor.name] = self._of_node(tensor, sequence, depth) if value is None else value
        return self._values[tensor.name]

    def outcomes(self, tensor: gs.Tensor) -> tuple[float, float] | None:
        """What a tensor made of the mask alone is in kept slots, and in masked ones; None for others."""
        facts = self._analysis[tensor]
        sequence = token_axis(facts.shape)
        return None if sequence is None else self._mask.outcomes(facts.expr, ("i0", f"i{sequence}"))

    def _of_expr(self, expr: Expr | None, sequence: int) -> float | None:
        """The number that an expression is in masked slots; it may read other inputs where these do not matter."""
        if isinstance(expr, Number):
            return float(expr.value)
        if isinstance(expr, Index):
            value = expr.poly.constant()
            return None if value is None else float(value)
        outcomes = self._mask.outcomes(expr, ("i0", f"i{sequence}"))
        if outcomes is not None or not isinstance(expr, Apply):
            return None if outcomes is None else outcomes[1]
        return _combine(expr.op, [self._of_expr(arg, sequence) for arg in expr.args], expr.dtype)

    def _of_node(self, tensor: gs.Tensor, sequence: int, depth: int) -> float | None:
        node = producer(tensor)
        if node is None or node.domain not in STANDARD_DOMAINS:
            return None
        facts = [self._analysis[item] for item in node.inputs]
        if is_standard(node, "ScatterElements", "ScatterND"):
            values = self.at_masked(node.inputs[0], depth - 1), facts[2].scalar()
            return values[0] if values[0] == values[1] else None
        if is_standard(node, "Softmax") and axis_of(node, facts[0].rank) == sequence:
            value = self.at_masked(node.inputs[0], depth - 1)
            return 0.0 if value is not None and value <= VERY_NEGATIVE else None
        if is_standard(node, *ELEMENTWISE):
            return self._of_elementwise(node, tensor, sequence, depth)
        try:
            packed_form(node, facts, self._analysis[tensor])
        except NoRule:
            return None
        if is_standard(node, "Concat"):
            operand_values = {self.at_masked(item, depth - 1) for item in node.inputs}
            return operand_values.pop() if len(operand_values) == 1 else None
        value = self.at_masked(node.inputs[0], depth - 1)
        if is_standard(node, *_MOVEMENTS, "ReduceMax", "ReduceMean", "ReduceMin"):
            return value
        if is_standard(node, "MatMul") or node.op.startswith("Reduce"):
            return 0.0 if value == 0.0 else None
        return None

    def _of_elementwise(self, node: gs.Node, tensor: gs.Tensor, sequence: int, depth: int) -> float | None:
        """The number in masked slots of an element-wise operator's result, from its operands broadcast to that."""
        shape, values = self._analysis[tensor].shape or (), list[float | None]()
        for item in present(node.inputs):
            facts = self._analysis[item]
            whole = facts.rank == len(shape) and token_axis(facts.shape) == sequence
            value = self.at_masked(item, depth - 1) if whole or facts.scalar() is not None else None
            if value is None:
                value = self._of_expr(broadcast_expr(facts, shape), sequence)
            values.append(value)
        return _combine(node.op, values, self._analysis[tensor].dtype or "float32")

    def is_never_negative(self, tensor: gs.Tensor, depth: int = _MAX_DEPTH) -> bool:
        """Whether no element is below 0, in whatever slot (NaN aside). False: not known."""
        scalar, node = self._analysis[tensor].scalar(), producer(tensor)
        if scalar is not None:
            return scalar >= 0.0
        both = self.outcomes(tensor)
        if both is not None:
            return min(both) >= 0.0
        if isinstance(tensor, gs.Constant) and np.prod(tensor.shape) <= 1 << 16:
            return bool(np.all(tensor.values >= 0))
        if node is None or node.domain not in STANDARD_DOMAINS or depth == 0:
            return False
        record = OPERATORS.get(node.op)
        if record is not None and record.least == 0.0:
            return True
        if node.op == "Clip":
            low = self._analysis[node.inputs[1]].scalar() if len(node.inputs) > 1 else None
            return low is not None and low >= 0.0
        if node.op == "Log":
            return self._is_at_least_one(node.inputs[0], depth - 1)
        if node.op == "Mul" and node.inputs[0] is node.inputs[1]:
            return True
        if node.op == "Pow" and (self._analysis[node.inputs[1]].scalar() or 1.0) % 2 == 0:
            return True
        operands = node.inputs[1:] if node.op == "Where" else node.inputs
        if node.op == "Where" or (record is not None and record.keeps_sign):
            return all(self.is_never_negative(item, depth - 1) for item in present(operands))
        return node.op in _MOVEMENTS and self.is_never_negative(node.inputs[0], depth - 1)

    def _is_at_least_one(self, tensor: gs.Tensor, depth: int) -> bool:
        """Whether the tensor is the sum of a number of at least 1 and something that is never negative."""
        node = producer(tensor)
        if node is None or not is_standard(node, "Add"):
            return False
        for this, other in ((0, 1), (1, 0)):
            number = self._analysis[node.inputs[this]].scalar()
            if number is not None and number >= 1.0:
                return self.is_never_negative(node.inputs[other], depth)
        return False


def _combine(op: str, values: list[float | None], dtype: str) -> float | None:
    """The result of an element-wise operator, where the operands that are known decide it."""
    if op == "Mul" and 0.0 in values:
        return 0.0
    if op == "Div" and values[0] == 0.0 and values[1] != 0.0:
        return 0.0  # the divisor is not 0, or the original would give NaN
    if op == "Add" and any(value is not None and value <= LOWEST for value in values):
        return min(value for value in values if value is not None)  # the other operand is small compared with it
    if (op == "And" and 0.0 in values) or (op == "Or" and any(values)):
        return float(op == "Or")
    if op == "Where":
        if values[0] is None:
            return values[1] if values[1] == values[2] else None
        return values[1] if values[0] else values[2]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    with np.errstate(all="ignore"):
        if op in _UNARY:
            result = _UNARY[op](numbers[0]) if op != "Cast" else float(np.asarray(numbers[0]).astype(dtype))
        elif op in ARITHMETIC:
            result = float(ARITHMETIC[op](*numbers))
        else:
            return None
    return None if np.isnan(result) else result
