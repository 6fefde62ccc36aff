# SPDX-License-Identifier: Apache-2.0
"""One record for each operator of ONNX: what it does with the elements and axes of its inputs.

Layout rules, symbolic shapes and passes take the sets of operators that they treat alike from here. Along which axes a
node works, and where the others are in its result, follows from its record, too (`symbolic/arguments.py`). What is more
than a property is a rule of their own.
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
    """Those along its axes; the shape stays."""
    REDUCTION = auto()
    """Those along its axes, which become one or vanish."""
    GEMM = auto()
    """Those of a row of the first operand, along its last axis, and those of a matrix."""


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
        axis: it works along one axis, and this is the default of the attribute `axis`.
        axes: it works along axes that this input holds; in old opsets, and as `axis`, an attribute may.
        trailing: it works along all axes from its axis on.
        adds_axes: its axes are those that only the result has, and are counted there.
        least: a lower bound of all elements of a result, whatever the inputs are; None: nothing is known.
        keeps_sign: no element of a result is below 0 if none of the inputs is.
        finite: zeros give finite numbers.
    """

    name: str
    moves: Movement | None = None
    work: Work | None = None
    shape: ShapeRule | None = None
    parameters: tuple[int, ...] = ()
    axis: int | None = None
    axes: int | None = None
    trailing: bool = False
    adds_axes: bool = False
    least: float | None = None
    keeps_sign: bool = False
    finite: bool = False

    @property
    def has_axes(self) -> bool:
        """Whether it works along axes, one or several."""
        return self.axis is not None or self.axes is not None


_RECORDS = (
    Operator("Abs", work=Work.ELEMENTWISE, least=0.0, finite=True),
    Operator("Acos", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Acosh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Add", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("And", work=Work.ELEMENTWISE, least=0.0),
    Operator("ArgMax", work=Work.REDUCTION, axis=0),
    Operator("ArgMin", work=Work.REDUCTION, axis=0),
    Operator("Asin", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Asinh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Atan", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Atanh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("BatchNormalization", shape=ShapeRule.FIRST),
    Operator("BitShift", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseAnd", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseNot", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("BitwiseOr", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("BitwiseXor", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST),
    Operator("Cast", moves=Movement.CONVERTED, work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Ceil", work=Work.ELEMENTWISE),
    Operator("Celu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Clip", work=Work.ELEMENTWISE, finite=True),
    Operator("Concat", moves=Movement.JOIN, keeps_sign=True, axis=0),
    Operator("Cos", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0),
    Operator("Cosh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("CumSum", parameters=(1,), axes=1),
    Operator("DequantizeLinear", axis=1),
    Operator("Div", work=Work.ELEMENTWISE, keeps_sign=True),
    Operator("Elu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Equal", work=Work.ELEMENTWISE, least=0.0),
    Operator("Erf", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("Exp", work=Work.ELEMENTWISE, least=0.0),
    Operator("Expand", moves=Movement.REPEATED, parameters=(1,)),
    Operator("Flatten", moves=Movement.VIEW),
    Operator("Floor", work=Work.ELEMENTWISE),
    Operator("Gather", moves=Movement.PART, axis=0),
    Operator("GatherElements", axis=0),
    Operator("Gelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("GroupNormalization", shape=ShapeRule.FIRST),
    Operator("Greater", work=Work.ELEMENTWISE, least=0.0),
    Operator("GreaterOrEqual", work=Work.ELEMENTWISE, least=0.0),
    Operator("HardSigmoid", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("HardSwish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Hardmax", work=Work.NORM, shape=ShapeRule.FIRST, axis=-1),
    Operator("Identity", moves=Movement.SAME, work=Work.ELEMENTWISE, finite=True),
    Operator("InstanceNormalization", shape=ShapeRule.FIRST),
    Operator("IsInf", work=Work.ELEMENTWISE),
    Operator("IsNaN", work=Work.ELEMENTWISE, least=0.0),
    Operator("LRN", shape=ShapeRule.FIRST),
    Operator("LayerNormalization", work=Work.NORM, axis=-1, trailing=True),
    Operator("LeakyRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Less", work=Work.ELEMENTWISE, least=0.0),
    Operator("LessOrEqual", work=Work.ELEMENTWISE, least=0.0),
    Operator("Log", work=Work.ELEMENTWISE),
    Operator("LogSoftmax", work=Work.NORM, shape=ShapeRule.FIRST, axis=-1),
    Operator("LpNormalization", work=Work.NORM, shape=ShapeRule.FIRST, axis=-1),
    Operator("MatMul", work=Work.GEMM),
    Operator("Max", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Mean", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST, keeps_sign=True),
    Operator("MeanVarianceNormalization", shape=ShapeRule.FIRST),
    Operator("Min", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Mish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Mod", work=Work.ELEMENTWISE),
    Operator("Mul", work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    Operator("Neg", work=Work.ELEMENTWISE, finite=True),
    Operator("Not", work=Work.ELEMENTWISE, least=0.0),
    Operator("OneHot", parameters=(1,), axis=-1, adds_axes=True),
    Operator("Or", work=Work.ELEMENTWISE, least=0.0),
    Operator("PRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Pad", parameters=(1, 2, 3), axes=3),
    Operator("Pow", work=Work.ELEMENTWISE, keeps_sign=True),
    Operator("QuantizeLinear", axis=1),
    Operator("RMSNormalization", work=Work.NORM, shape=ShapeRule.FIRST, axis=-1, trailing=True),
    Operator("Reciprocal", work=Work.ELEMENTWISE),
    Operator("ReduceL1", work=Work.REDUCTION, least=0.0, axes=1),
    Operator("ReduceL2", work=Work.REDUCTION, least=0.0, axes=1),
    Operator("ReduceLogSum", work=Work.REDUCTION, axes=1),
    Operator("ReduceLogSumExp", work=Work.REDUCTION, axes=1),
    Operator("ReduceMax", work=Work.REDUCTION, keeps_sign=True, axes=1),
    Operator("ReduceMean", work=Work.REDUCTION, keeps_sign=True, axes=1),
    Operator("ReduceMin", work=Work.REDUCTION, keeps_sign=True, axes=1),
    Operator("ReduceProd", work=Work.REDUCTION, keeps_sign=True, axes=1),
    Operator("ReduceSum", work=Work.REDUCTION, keeps_sign=True, axes=1),
    Operator("ReduceSumSquare", work=Work.REDUCTION, least=0.0, axes=1),
    Operator("Relu", work=Work.ELEMENTWISE, least=0.0, finite=True),
    Operator("Reshape", moves=Movement.VIEW, parameters=(1,)),
    Operator("Resize", parameters=(1, 2, 3)),
    Operator("ReverseSequence", shape=ShapeRule.FIRST),
    Operator("Round", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Scatter", shape=ShapeRule.FIRST, axis=0),
    Operator("ScatterElements", shape=ShapeRule.FIRST, axis=0),
    Operator("Selu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Shrink", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Sigmoid", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("Sign", work=Work.ELEMENTWISE),
    Operator("Sin", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0),
    Operator("Sinh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Slice", moves=Movement.PART, parameters=(1, 2, 3, 4), axes=3),
    Operator("Softmax", work=Work.NORM, shape=ShapeRule.FIRST, least=0.0, axis=-1),
    Operator("Softplus", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=0.0, finite=True),
    Operator("Softsign", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("Split", moves=Movement.PART, parameters=(1,), axis=0),
    Operator("Sqrt", work=Work.ELEMENTWISE, least=0.0),
    Operator("Squeeze", moves=Movement.VIEW, parameters=(1,), axes=1),
    Operator("Sub", work=Work.ELEMENTWISE, finite=True),
    Operator("Sum", work=Work.ELEMENTWISE, shape=ShapeRule.BROADCAST, keeps_sign=True),
    Operator("Swish", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, finite=True),
    Operator("Tan", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Tanh", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST, least=-1.0, finite=True),
    Operator("TensorScatter", shape=ShapeRule.FIRST),
    Operator("ThresholdedRelu", work=Work.ELEMENTWISE, shape=ShapeRule.FIRST),
    Operator("Tile", moves=Movement.REPEATED, parameters=(1,)),
    Operator("TopK", parameters=(1,), axis=-1),
    Operator("Transpose", moves=Movement.PERMUTED),
    Operator("Unsqueeze", moves=Movement.VIEW, parameters=(1,), axes=1, adds_axes=True),
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
