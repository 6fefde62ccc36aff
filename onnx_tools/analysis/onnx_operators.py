# SPDX-License-Identifier: Apache-2.0
"""One record for each operator of ONNX: what it does with the elements and axes of its inputs.

Layout rules, symbolic shapes and passes take the sets of operators that they treat alike from here. What is more than a
property, such as the axes that a Slice cuts, is a rule of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType


class Movement(Enum):
    """How results hold elements of inputs, for operators whose results hold only such elements."""

    SAME = auto()
    """All of the first input's, as they are."""
    VIEW = auto()
    """All in their order, in another shape."""
    PERMUTED = auto()
    """All, with axes in another order."""
    PART = auto()
    """Some of them, chosen along an axis."""
    REPEATED = auto()
    """All, several times."""
    JOIN = auto()
    """Those of all inputs, side by side."""
    CONVERTED = auto()
    """All, as another type."""


class Work(Enum):
    """Which elements of inputs an element of the result depends on."""

    ELEMENTWISE = auto()
    """The same element of every operand, after broadcasting."""
    NORM = auto()
    """Those along `axis`, or from it on; the shape stays."""
    REDUCTION = auto()
    """Those along `axes`, which become one or vanish."""


class ShapeRule(Enum):
    """The result's shape and type, for operators about which symbolic analysis knows nothing else."""

    FIRST = auto()
    """Those of the first input."""
    BROADCAST = auto()
    """All inputs' shapes broadcast, and the first input's type."""


@dataclass(frozen=True)
class Operator:
    """What is known of an operator.

    Attributes:
        name: its name in ONNX's standard domain.
        moves: how results hold elements of inputs; None where they hold others.
        work: which elements a result's element depends on; None: none of these kinds.
        shape: the shape rule; None: symbolic analysis has a rule of its own, or none.
        parameters: inputs that say what it does; the others are data.
        least: a lower bound of all elements of a result, whatever the inputs are; None: nothing is known.
        keeps_sign: no element of a result is below 0 if none of the inputs is.
        finite: zeros give finite numbers.
    """

    name: str
    moves: Movement | None = None
    work: Work | None = None
    shape: ShapeRule | None = None
    parameters: tuple[int, ...] = ()
    least: float | None = None
    keeps_sign: bool = False
    finite: bool = False


_RECORDS = (
    Operator("Abs", work=Work.ELEMENTWISE, least=0.0, finite=True),
    Operator("Acos", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Acosh", work=Work.ELEMENTWISE),
    Operator("Add", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("And", work=Work.ELEMENTWISE, least=0.0),
    Operator("Asin", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Asinh", work=Work.ELEMENTWISE),
    Operator("Atan", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Atanh", work=Work.ELEMENTWISE),
    Operator("BatchNormalization", shape=ShapeRule.FIRST),
    Operator("BitShift", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseAnd", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseNot", work=Work.ELEMENTWISE),
    Operator("BitwiseOr", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseXor", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("Cast", moves=Movement.CONVERTED, work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Ceil", work=Work.ELEMENTWISE),
    Operator("Celu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Clip", work=Work.ELEMENTWISE, finite=True),
    Operator("Concat", moves=Movement.JOIN, keeps_sign=True),
    Operator("Cos", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0),
    Operator("Cosh", work=Work.ELEMENTWISE),
    Operator("CumSum", parameters=(1,)),
    Operator("Div", work=Work.ELEMENTWISE, keeps_sign=True),
    Operator("Elu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Equal", work=Work.ELEMENTWISE, least=0.0),
    Operator("Erf", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("Exp", work=Work.ELEMENTWISE, least=0.0),
    Operator("Expand", moves=Movement.REPEATED, parameters=(1,)),
    Operator("Flatten", moves=Movement.VIEW),
    Operator("Floor", work=Work.ELEMENTWISE),
    Operator("Gather", moves=Movement.PART),
    Operator("Gelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Greater", work=Work.ELEMENTWISE, least=0.0),
    Operator("GreaterOrEqual", work=Work.ELEMENTWISE, least=0.0),
    Operator("HardSigmoid", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("HardSwish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Hardmax", work=Work.NORM, shape=ShapeRule.FIRST),
    Operator("Identity", moves=Movement.SAME, work=Work.ELEMENTWISE, finite=True),
    Operator("IsInf", work=Work.ELEMENTWISE),
    Operator("IsNaN", work=Work.ELEMENTWISE, least=0.0),
    Operator("LayerNormalization", work=Work.NORM),
    Operator("LeakyRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Less", work=Work.ELEMENTWISE, least=0.0),
    Operator("LessOrEqual", work=Work.ELEMENTWISE, least=0.0),
    Operator("Log", work=Work.ELEMENTWISE),
    Operator("LogSoftmax", work=Work.NORM, shape=ShapeRule.FIRST),
    Operator("LpNormalization", work=Work.NORM, shape=ShapeRule.FIRST),
    Operator("Max", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Mean", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST, keeps_sign=True),
    Operator("Min", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Mish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Mod", work=Work.ELEMENTWISE),
    Operator("Mul", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Neg", work=Work.ELEMENTWISE, finite=True),
    Operator("Not", work=Work.ELEMENTWISE, least=0.0),
    Operator("OneHot", parameters=(1,)),
    Operator("Or", work=Work.ELEMENTWISE, least=0.0),
    Operator("PRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Pad", parameters=(1, 2, 3)),
    Operator("Pow", work=Work.ELEMENTWISE, keeps_sign=True),
    Operator("RMSNormalization", work=Work.NORM, shape=ShapeRule.FIRST),
    Operator("Reciprocal", work=Work.ELEMENTWISE),
    Operator("ReduceL1", work=Work.REDUCTION, least=0.0),
    Operator("ReduceL2", work=Work.REDUCTION, least=0.0),
    Operator("ReduceLogSum", work=Work.REDUCTION),
    Operator("ReduceLogSumExp", work=Work.REDUCTION),
    Operator("ReduceMax", work=Work.REDUCTION, keeps_sign=True),
    Operator("ReduceMean", work=Work.REDUCTION, keeps_sign=True),
    Operator("ReduceMin", work=Work.REDUCTION, keeps_sign=True),
    Operator("ReduceProd", work=Work.REDUCTION, keeps_sign=True),
    Operator("ReduceSum", work=Work.REDUCTION, keeps_sign=True),
    Operator("ReduceSumSquare", work=Work.REDUCTION, least=0.0),
    Operator("Relu", work=Work.ELEMENTWISE, least=0.0, finite=True),
    Operator("Reshape", moves=Movement.VIEW, parameters=(1,)),
    Operator("Resize", parameters=(1, 2, 3)),
    Operator("Round", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Selu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Shrink", work=Work.ELEMENTWISE),
    Operator("Sigmoid", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("Sign", work=Work.ELEMENTWISE),
    Operator("Sin", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0),
    Operator("Sinh", work=Work.ELEMENTWISE),
    Operator("Slice", moves=Movement.PART, parameters=(1, 2, 3, 4)),
    Operator("Softmax", work=Work.NORM, shape=ShapeRule.FIRST, least=0.0),
    Operator("Softplus", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("Softsign", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("Split", moves=Movement.PART, parameters=(1,)),
    Operator("Sqrt", work=Work.ELEMENTWISE, least=0.0),
    Operator("Squeeze", moves=Movement.VIEW, parameters=(1,)),
    Operator("Sub", work=Work.ELEMENTWISE, finite=True),
    Operator("Sum", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST, keeps_sign=True),
    Operator("Swish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Tan", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Tanh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("ThresholdedRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Tile", moves=Movement.REPEATED, parameters=(1,)),
    Operator("TopK", parameters=(1,)),
    Operator("Transpose", moves=Movement.PERMUTED),
    Operator("Unsqueeze", moves=Movement.VIEW, parameters=(1,)),
    Operator("Where", work=Work.ELEMENTWISE, finite=True),
    Operator("Xor", work=Work.ELEMENTWISE),
)
OPERATORS: Mapping[str, Operator] = MappingProxyType({record.name: record for record in _RECORDS})
"""The records by name."""


def moving(*movements: Movement) -> frozenset[str]:
    """The operators that move elements in one of these ways."""
    return frozenset(record.name for record in _RECORDS if record.moves in movements)


def working(work: Work) -> frozenset[str]:
    """The operators whose results depend on such elements."""
    return frozenset(record.name for record in _RECORDS if record.work is work)


ELEMENTWISE = working(Work.ELEMENTWISE)
RESHAPES = moving(Movement.VIEW)
REORDERINGS = moving(Movement.SAME, Movement.VIEW, Movement.PERMUTED)
"""What leaves every element in the result, once, wherever it lies."""
