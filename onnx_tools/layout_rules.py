# SPDX-License-Identifier: Apache-2.0
"""Which operators work on packed tokens [T,...] as they do on padded ones [B,S,...], and what changes in the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .graph import STANDARD_DOMAINS, is_padfree, present
from .layout import is_token_shape
from .symbolic.facts import Facts
from .symbolic.rules import axes_of_node, split_sizes

Known = Sequence[Facts]


class NoRule(Exception):
    """Raised where an operator does not keep the packed layout; the message is the reason."""


@dataclass(frozen=True)
class Packed:
    """How a node reads on packed tokens."""

    tokens: tuple[int, ...]  # inputs that become [T,...]
    attrs: Mapping[str, Any] = field(default_factory=dict)  # attributes that change
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)  # inputs that become these constants


# Each element of the result depends on the same element of the operands alone.
ELEMENTWISE = frozenset(
    {
        "Abs", "Acos", "Add", "And", "Asin", "Atan", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
        "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
        "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual",
        "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu",
        "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan",
        "Tanh", "ThresholdedRelu", "Where", "Xor",
    }
)  # fmt: skip


def packed_form(node: gs.Node, known: Known, output: Facts) -> Packed:
    """How the node reads on packed tokens. Raises NoRule with the reason where no rule says that it may."""
    if is_padfree(node, "PadfreeLayerNorm"):
        return Packed(tuple(i for i, facts in enumerate(known) if is_token_shape(facts.shape)))
    if node.domain not in STANDARD_DOMAINS:
        raise NoRule(f"no rule knows the operator {node.domain}.{node.op}")
    if not is_token_shape(output.shape):
        raise NoRule(f"{node.op} makes a tensor that is not [batch, sequence, ...]")
    if node.op in ELEMENTWISE:
        return _elementwise(node, known, output)
    rule = _RULES.get(node.op)
    if rule is None:
        raise NoRule(f"no rule knows the operator {node.op}")
    if not is_token_shape(known[0].shape) and node.op != "Gather":
        raise NoRule(f"{node.op} reads a tensor that is not [batch, sequence, ...]")
    return rule(node, known, output)


def _elementwise(node: gs.Node, known: Known, output: Facts) -> Packed:
    """Operands are [B,S,...], or have nothing along the batch and the sequence."""
    rank = len(output.shape or ())
    tokens: list[int] = []
    for position, facts in enumerate(known):
        if node.inputs[position].is_empty():
            continue
        shape = facts.shape
        if shape is None:
            raise NoRule(f"an operand of {node.op} has an unknown shape")
        if is_token_shape(shape) and len(shape) == rank:
            tokens.append(position)
        elif node.op == "PRelu" and position == 1:
            raise NoRule("PRelu has slopes that may lie along the sequence")
        elif len(shape) >= rank - 1 and any(size.constant() != 1 for size in shape[: len(shape) - (rank - 2)]):
            raise NoRule(f"{node.op} has an operand along the batch or the sequence that is not [batch, sequence, ...]")
        elif len(shape) >= rank:
            raise NoRule(f"{node.op} has an operand with axes of size 1 for batch and sequence")
    return Packed(tuple(tokens))


def _norm(node: gs.Node, known: Known, output: Facts) -> Packed:
    """LayerNormalization, Softmax and their like over axes behind batch and sequence."""
    del output
    rank = len(known[0].shape or ())
    axis = int(node.attrs.get("axis", -1)) % rank
    if axis < 2:
        raise NoRule(f"{node.op} is over the batch or the sequence")
    if len(present(node.outputs)) > 1:
        raise NoRule(f"{node.op} gives out its statistics")
    if any(is_token_shape(facts.shape) for facts in known[1:]):
        raise NoRule(f"{node.op} has parameters that differ between tokens")
    return Packed((0,), {"axis": axis - 1})


def _matmul(_: gs.Node, known: Known, output: Facts) -> Packed:
    """x W with one matrix W for all tokens."""
    del output
    weight = known[1]
    if len(known[0].shape or ()) != 3:
        raise NoRule("MatMul has a first operand that is not [batch, sequence, K]")
    if not weight.constant or weight.static_shape() is None or len(weight.shape or ()) != 2:
        raise NoRule("MatMul has a second operand that is no constant matrix")
    return Packed((0,))


def _gather(node: gs.Node, known: Known, output: Facts) -> Packed:
    """Rows of a constant table, or columns behind batch and sequence."""
    del output
    axis, rank = int(node.attrs.get("axis", 0)), len(known[0].shape or ())
    if known[0].constant and axis in (0, -rank) and is_token_shape(known[1].shape):
        return Packed((1,))
    axis %= max(rank, 1)
    if not is_token_shape(known[0].shape) or axis < 2 or not known[1].constant:
        raise NoRule("Gather takes elements along the batch or the sequence")
    return Packed((0,), {"axis": axis - 1})


def _axis(node: gs.Node, known: Known, output: Facts) -> Packed:
    """Concat of token tensors, along an axis behind batch and sequence."""
    del output
    axis = int(node.attrs["axis"]) % len(known[0].shape or ())
    if axis < 2:
        raise NoRule(f"{node.op} is along the batch or the sequence")
    if any(not is_token_shape(facts.shape) for facts in known):
        raise NoRule(f"{node.op} joins tensors of which one is not [batch, sequence, ...]")
    return Packed(tuple(range(len(known))), {"axis": axis - 1})


def _split(node: gs.Node, known: Known, output: Facts) -> Packed:
    del output
    axis = int(node.attrs.get("axis", 0)) % len(known[0].shape or ())
    if axis < 2 or split_sizes(node, known) is None:
        raise NoRule("Split is along the batch or the sequence")
    return Packed((0,), {"axis": axis - 1})


def _slice(node: gs.Node, known: Known, output: Facts) -> Packed:
    del output
    rank = len(known[0].shape or ())
    if len(known) < 4 or node.inputs[3].is_empty():
        raise NoRule("Slice does not name its axes")
    axes = known[3].plain_integers()
    if axes is None or any(axis % rank < 2 for axis in axes) or not all(facts.constant for facts in known[1:]):
        raise NoRule("Slice is along the batch or the sequence")
    return Packed((0,), constants={3: np.asarray([axis % rank - 1 for axis in axes], np.int64)})


def _unsqueeze(node: gs.Node, known: Known, output: Facts) -> Packed:
    return _axes(node, known, len(output.shape or ()))


def _reduced(node: gs.Node, known: Known, output: Facts) -> Packed:
    """Squeeze and Reduce..., over axes behind batch and sequence."""
    del output
    return _axes(node, known, len(known[0].shape or ()))


def _axes(node: gs.Node, known: Known, rank: int) -> Packed:
    axes = axes_of_node(node, known, 1)
    if axes is None or any(axis % rank < 2 for axis in axes):
        raise NoRule(f"{node.op} is over the batch or the sequence")
    moved = [axis % rank - 1 for axis in axes]
    if "axes" in node.attrs:
        return Packed((0,), {"axes": moved})
    return Packed((0,), constants={1: np.asarray(moved, np.int64)})


def _transpose(node: gs.Node, known: Known, output: Facts) -> Packed:
    del known, output
    perm = [int(axis) for axis in node.attrs.get("perm", [])]
    if perm[:2] != [0, 1]:
        raise NoRule("Transpose moves the batch or the sequence")
    return Packed((0,), {"perm": [0, *(axis - 1 for axis in perm[2:])]})


def _reshape(node: gs.Node, known: Known, output: Facts) -> Packed:
    """Only axes behind batch and sequence change: both shapes are [B,S, known integers]."""
    del node, known
    rest = [size.constant() for size in (output.shape or ())[2:]]
    if any(size is None for size in rest):
        raise NoRule("Reshape makes axes of unknown sizes")
    return Packed((0,), {"allowzero": 0}, {1: np.asarray([-1, *rest], np.int64)})


_RULES: Mapping[str, Callable[[gs.Node, Known, Facts], Packed]] = MappingProxyType(
    {
        "Concat": _axis,
        "Gather": _gather,
        "LayerNormalization": _norm,
        "LogSoftmax": _norm,
        "LpNormalization": _norm,
        "MatMul": _matmul,
        "RMSNormalization": _norm,
        "Reshape": _reshape,
        "Slice": _slice,
        "Softmax": _norm,
        "Split": _split,
        "Squeeze": _reduced,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
        **{f"Reduce{kind}": _reduced for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
    }
)
