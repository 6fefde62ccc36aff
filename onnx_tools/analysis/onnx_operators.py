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
from functools import partial
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


_elementwise = partial(Operator, work=Work.ELEMENTWISE)
_unary = partial(_elementwise, shape=ShapeRule.FIRST)
_broadcast = partial(_elementwise, shape=ShapeRule.BROADCAST)
_norm = partial(Operator, work=Work.NORM, shape=ShapeRule.FIRST, axis=-1)
_reduction = partial(Operator, work=Work.REDUCTION, axes=1)

_RECORDS = (
    _elementwise("Abs", least=0.0, finite=True),
    _unary("Acos"),
    _unary("Acosh"),
    _elementwise("Add", keeps_sign=True, finite=True),
    _elementwise("And", least=0.0),
    Operator("ArgMax", work=Work.REDUCTION, axis=0),
    Operator("ArgMin", work=Work.REDUCTION, axis=0),
    _unary("Asin"),
    _unary("Asinh"),
    _unary("Atan"),
    _unary("Atanh"),
    Operator("BatchNormalization", shape=ShapeRule.FIRST),
    _broadcast("BitShift"),
    _broadcast("BitwiseAnd"),
    _unary("BitwiseNot"),
    _broadcast("BitwiseOr"),
    _broadcast("BitwiseXor"),
    Operator("Cast", moves=Movement.CONVERTED, work=Work.ELEMENTWISE, keeps_sign=True, finite=True),
    _elementwise("Ceil"),
    _unary("Celu", finite=True),
    _elementwise("Clip", finite=True),
    Operator("Concat", moves=Movement.JOIN, keeps_sign=True, axis=0),
    _unary("Cos", least=-1.0),
    _unary("Cosh"),
    Operator("CumSum", parameters=(1,), axes=1),
    Operator("DequantizeLinear", axis=1),
    _elementwise("Div", keeps_sign=True),
    _unary("Elu", finite=True),
    _elementwise("Equal", least=0.0),
    _unary("Erf", least=-1.0, finite=True),
    _elementwise("Exp", least=0.0),
    Operator("Expand", moves=Movement.REPEATED, parameters=(1,)),
    Operator("Flatten", moves=Movement.VIEW),
    _elementwise("Floor"),
    Operator("Gather", moves=Movement.PART, axis=0),
    Operator("GatherElements", axis=0),
    _unary("Gelu", finite=True),
    Operator("GroupNormalization", shape=ShapeRule.FIRST),
    _elementwise("Greater", least=0.0),
    _elementwise("GreaterOrEqual", least=0.0),
    _unary("HardSigmoid", least=0.0, finite=True),
    _unary("HardSwish", finite=True),
    _norm("Hardmax"),
    Operator("Identity", moves=Movement.SAME, work=Work.ELEMENTWISE, finite=True),
    Operator("InstanceNormalization", shape=ShapeRule.FIRST),
    _elementwise("IsInf"),
    _elementwise("IsNaN", least=0.0),
    Operator("LRN", shape=ShapeRule.FIRST),
    Operator("LayerNormalization", work=Work.NORM, axis=-1, trailing=True),
    _unary("LeakyRelu", finite=True),
    _elementwise("Less", least=0.0),
    _elementwise("LessOrEqual", least=0.0),
    _elementwise("Log"),
    _norm("LogSoftmax"),
    _norm("LpNormalization"),
    Operator("MatMul", work=Work.GEMM),
    _elementwise("Max", keeps_sign=True, finite=True),
    _broadcast("Mean", keeps_sign=True),
    Operator("MeanVarianceNormalization", shape=ShapeRule.FIRST),
    _elementwise("Min", keeps_sign=True, finite=True),
    _unary("Mish", finite=True),
    _elementwise("Mod"),
    _elementwise("Mul", keeps_sign=True, finite=True),
    _elementwise("Neg", finite=True),
    _elementwise("Not", least=0.0),
    Operator("OneHot", parameters=(1,), axis=-1, adds_axes=True),
    _elementwise("Or", least=0.0),
    _unary("PRelu"),
    Operator("Pad", parameters=(1, 2, 3), axes=3),
    _elementwise("Pow", keeps_sign=True),
    Operator("QuantizeLinear", axis=1),
    _norm("RMSNormalization", trailing=True),
    _elementwise("Reciprocal"),
    _reduction("ReduceL1", least=0.0),
    _reduction("ReduceL2", least=0.0),
    _reduction("ReduceLogSum"),
    _reduction("ReduceLogSumExp"),
    _reduction("ReduceMax", keeps_sign=True),
    _reduction("ReduceMean", keeps_sign=True),
    _reduction("ReduceMin", keeps_sign=True),
    _reduction("ReduceProd", keeps_sign=True),
    _reduction("ReduceSum", keeps_sign=True),
    _reduction("ReduceSumSquare", least=0.0),
    _elementwise("Relu", least=0.0, finite=True),
    Operator("Reshape", moves=Movement.VIEW, parameters=(1,)),
    Operator("Resize", parameters=(1, 2, 3)),
    Operator("ReverseSequence", shape=ShapeRule.FIRST),
    _unary("Round"),
    Operator("Scatter", shape=ShapeRule.FIRST, axis=0),
    Operator("ScatterElements", shape=ShapeRule.FIRST, axis=0),
    _unary("Selu", finite=True),
    _unary("Shrink"),
    _unary("Sigmoid", least=0.0, finite=True),
    _elementwise("Sign"),
    _unary("Sin", least=-1.0),
    _unary("Sinh"),
    Operator("Slice", moves=Movement.PART, parameters=(1, 2, 3, 4), axes=3),
    _norm("Softmax", least=0.0),
    _unary("Softplus", least=0.0, finite=True),
    _unary("Softsign", least=-1.0, finite=True),
    Operator("Split", moves=Movement.PART, parameters=(1,), axis=0),
    _elementwise("Sqrt", least=0.0),
    Operator("Squeeze", moves=Movement.VIEW, parameters=(1,), axes=1),
    _elementwise("Sub", finite=True),
    _broadcast("Sum", keeps_sign=True),
    _unary("Swish", finite=True),
    _unary("Tan"),
    _unary("Tanh", least=-1.0, finite=True),
    Operator("TensorScatter", shape=ShapeRule.FIRST),
    _unary("ThresholdedRelu"),
    Operator("Tile", moves=Movement.REPEATED, parameters=(1,)),
    Operator("TopK", parameters=(1,), axis=-1),
    Operator("Transpose", moves=Movement.PERMUTED),
    Operator("Unsqueeze", moves=Movement.VIEW, parameters=(1,), axes=1, adds_axes=True),
    _elementwise("Where", finite=True),
    _elementwise("Xor"),
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
