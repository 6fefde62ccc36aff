# SPDX-License-Identifier: Apache-2.0
"""Which operators work on packed tokens [T,...] as they do on padded ones [B,S,...], and what changes in the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .graph import STANDARD_DOMAINS, is_padfree, present
from .layout import B, S, is_token_shape, packed_axis, token_axis
from .onnx_operators import ELEMENTWISE, OPERATORS, Work, working
from .symbolic.arguments import (
    argument_facts,
    arguments_with_axes,
    axes_along,
    axes_in_result,
    axis_of,
    permutation,
    split_sizes,
)
from .symbolic.facts import Facts, InputFacts, Shape


class NoRule(Exception):
    """Raised where an operator does not keep the packed layout; the message is the reason."""


@dataclass(frozen=True)
class PackedForm:
    """What a node becomes on packed tokens."""

    tokens: tuple[int, ...]  # inputs that become [T,...]
    attrs: Mapping[str, Any] = field(default_factory=dict)  # attributes that change
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)  # inputs that become these constants
    is_same: bool = False  # the result equals the input: only batch and sequence would move
    rows: tuple[int, ...] = ()  # inputs [B,...,1,...] of which every token gets its sequence's row
    of_slots: tuple[int, ...] = ()  # inputs [...,S,...] without a batch, of which every token gets its slot's row


def packed_form(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """What the node becomes on packed tokens. Raises NoRule with the reason where no rule allows it."""
    if is_padfree(node, "PadfreeLayerNorm"):
        return PackedForm(tuple(i for i, facts in enumerate(input_facts) if is_token_shape(facts.shape)))
    if node.domain not in STANDARD_DOMAINS:
        raise NoRule(f"no rule knows the operator {node.domain}.{node.op}")
    if token_axis(output.shape) is None:
        raise NoRule(f"{node.op} makes a tensor that is not [batch, sequence, ...]")
    if node.op in ELEMENTWISE:
        return _elementwise(node, input_facts, output)
    rule = _RULES.get(node.op)
    if rule is None:
        raise NoRule(f"no rule knows the operator {node.op}")
    if token_axis(input_facts[0].shape) is None and node.op not in ("Expand", "Gather"):
        raise NoRule(f"{node.op} reads a tensor that is not [batch, sequence, ...]")
    return rule(node, input_facts, output)


def _sequence(facts: Facts) -> int:
    """The sequence's axis of a tensor that is known to have one."""
    axis = token_axis(facts.shape)
    if axis is None:
        raise NoRule("a tensor is not [batch, sequence, ...]")
    return axis


def _packed_axis(node: gs.Node, axis: int, facts: Facts) -> int:
    """The packed position of an axis of the tensor."""
    position = packed_axis(axis % len(facts.shape or ()), _sequence(facts))
    if position is None:
        raise NoRule(f"{node.op} is over the batch or the sequence")
    return position


def _check_batch_and_sequence(node: gs.Node, input_facts: InputFacts, output: Facts, what: str) -> None:
    """Raises NoRule unless batch and sequence of the first input are those of the result."""
    axes = axes_in_result(node, input_facts, output)
    if not axes or (axes[0], axes[_sequence(input_facts[0])]) != (0, _sequence(output)):
        raise NoRule(f"{node.op} moves {what}")


def _elementwise(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Operands are [B,...,S,...] like the result, or have nothing along the batch and the sequence."""
    rank, sequence = len(output.shape or ()), _sequence(output)
    tokens, rows, of_slots = list[int](), list[int](), list[int]()
    constants: dict[int, np.ndarray] = {}
    for position, facts in enumerate(input_facts):
        tensor = node.inputs[position]
        if tensor.is_empty():
            continue
        shape = facts.shape
        if shape is None:
            raise NoRule(f"an operand of {node.op} has an unknown shape")
        trailing = rank - 1 - sequence
        if len(shape) == rank and token_axis(shape) == sequence:
            tokens.append(position)
        elif is_row_shape(shape, rank, sequence):
            rows.append(position)
        elif is_slot_shape(shape, rank, sequence):
            of_slots.append(position)
        elif node.op == "PRelu" and position == 1:
            raise NoRule("PRelu has slopes that may lie along the sequence")
        elif len(shape) > trailing and (not isinstance(tensor, gs.Constant) or shape[-1 - trailing].constant() != 1):
            raise NoRule(f"{node.op} has an operand along the batch or the sequence that is not [batch, sequence, ...]")
        elif len(shape) == rank and shape[0].constant() != 1:
            raise NoRule(f"{node.op} has an operand along the batch that is not [batch, sequence, ...]")
        elif len(shape) > trailing:
            constants[position] = _without_tokens(tensor.values, rank, sequence)
    return PackedForm(tuple(tokens), constants=constants, rows=tuple(rows), of_slots=tuple(of_slots))


def is_slot_shape(shape: Shape | None, rank: int, sequence: int) -> bool:
    """Whether a shape has S along the sequence of a result of that rank, and fixed sizes elsewhere: no batch."""
    trailing = rank - sequence
    if shape is None or not trailing <= len(shape) <= rank or shape[-trailing] != S:
        return False
    others = [size.constant() for axis, size in enumerate(shape) if axis != len(shape) - trailing]
    return None not in others and (len(shape) < rank or shape[0].constant() == 1)


def is_row_shape(shape: Shape | None, rank: int, sequence: int) -> bool:
    """Whether a shape is [B,...,1,...], with size 1 along the sequence of a result of that rank."""
    if shape is None or len(shape) != rank or shape[0] != B:
        return False
    rest = [size.constant() for axis, size in enumerate(shape) if axis]
    return None not in rest and shape[sequence].constant() == 1


def _without_tokens(values: np.ndarray, rank: int, sequence: int) -> np.ndarray:
    """A constant without its axes of size 1 at batch and sequence."""
    offset = rank - values.ndim
    axes = tuple(axis - offset for axis in (0, sequence) if axis >= offset)
    return np.squeeze(values, axes)


def _along_axes(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Work along axes that are neither batch nor sequence."""
    return _with_tokens(node, (0,), input_facts, output)


def _with_tokens(node: gs.Node, tokens: tuple[int, ...], input_facts: InputFacts, output: Facts) -> PackedForm:
    """The form of a node that works along axes, with the inputs that become [T,...]."""
    axes, operand = axes_along(node, input_facts), output if OPERATORS[node.op].adds_axes else input_facts[0]
    if axes is None:
        raise NoRule(f"{node.op} is over all axes, or over axes that are not known")
    packed = [_packed_axis(node, axis, operand) for axis in axes]
    return PackedForm(tokens, *arguments_with_axes(node, input_facts, packed))


def _norm(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """LayerNormalization, Softmax and their like."""
    if len(present(node.outputs)) > 1:
        raise NoRule(f"{node.op} gives out its statistics")
    if any(token_axis(facts.shape) is not None for facts in input_facts[1:]):
        raise NoRule(f"{node.op} has parameters that differ between tokens")
    return _along_axes(node, input_facts, output)


def _matmul(_: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """A product with one matrix for all tokens, or of two matrices that every token has."""
    del output
    weight, sequence, rank = input_facts[1], _sequence(input_facts[0]), len(input_facts[0].shape or ())
    if sequence == rank - 1:
        raise NoRule("MatMul has a first operand that ends with the sequence")
    if sequence < rank - 2 and weight.rank != 1:
        if weight.rank == rank and token_axis(weight.shape) == sequence:
            return PackedForm((0, 1))
        if weight.constant and weight.static_shape() is not None and (weight.rank or 0) < rank - sequence:
            return PackedForm((0,))
    if not weight.constant or weight.static_shape() is None or len(weight.shape or ()) not in (1, 2):
        raise NoRule("MatMul has a second operand that is no constant matrix")
    return PackedForm((0,))


def _gather(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Rows of a constant table, or columns after batch and sequence."""
    table, indices = input_facts
    if table.constant and axis_of(node, table.rank) == 0 and token_axis(indices.shape) is not None:
        return PackedForm((1,))
    if token_axis(table.shape) is None or not indices.constant or axis_of(node, table.rank) in (0, _sequence(table)):
        raise NoRule("Gather takes elements along the batch or the sequence")
    return _along_axes(node, input_facts, output)


def _quantize(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """One scale for the whole tensor, or one for each element of an axis."""
    if node.attrs.get("block_size", 0):
        raise NoRule(f"{node.op} has scales for blocks")
    sizes = input_facts[1].static_shape()
    if sizes is None or not input_facts[1].constant:
        raise NoRule(f"{node.op} has a scale that is no constant")
    return (_elementwise if sizes in ((), (1,)) else _along_axes)(node, input_facts, output)


def _concat(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Concat of token tensors, along an axis that is neither batch nor sequence."""
    if any(token_axis(facts.shape) != _sequence(output) for facts in input_facts):
        raise NoRule(f"{node.op} joins tensors of which one is not [batch, sequence, ...]")
    return _with_tokens(node, tuple(range(len(input_facts))), input_facts, output)


def _elements(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """GatherElements and ScatterElements: elements are chosen within every token."""
    if any(facts.rank != output.rank or token_axis(facts.shape) != _sequence(output) for facts in input_facts):
        raise NoRule(f"{node.op} takes elements from tensors of which one is not [batch, sequence, ...]")
    return _with_tokens(node, tuple(range(len(input_facts))), input_facts, output)


def _top(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    if not input_facts[1].constant:
        raise NoRule("TopK takes a number of elements that depends on the inputs")
    return _along_axes(node, input_facts, output)


def _one_hot(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """OneHot, whose new axis may stand before or after the sequence."""
    if not (input_facts[1].constant and input_facts[2].constant):
        raise NoRule("OneHot has a depth or values that depend on the inputs")
    axis = axis_of(node, output.rank)
    if (token_axis(input_facts[0].shape) or 0) + (axis <= _sequence(input_facts[0])) != _sequence(output):
        raise NoRule("OneHot moves the sequence")
    return _along_axes(node, input_facts, output)


def _triangle(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """The triangle of every token's own matrix."""
    if _sequence(output) >= len(output.shape or ()) - 2 or not all(facts.constant for facts in input_facts[1:]):
        raise NoRule(f"{node.op} is over the batch or the sequence")
    return PackedForm((0,))


def _pad(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Pad along axes other than batch and sequence."""
    rank, pads = len(output.shape or ()), input_facts[1].plain_integers()
    own_axes = argument_facts(node, input_facts, 3)
    axes = list(range(rank)) if own_axes is None else own_axes.plain_integers()
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        raise NoRule("Pad has widths or axes that are not known")
    widths = dict(
        zip((axis % rank for axis in axes), zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True)
    )
    other_axes = [axis for axis in range(rank) if axis not in (0, _sequence(output))]
    if any(widths.get(axis, (0, 0)) != (0, 0) for axis in (0, _sequence(output))):
        raise NoRule("Pad is over the batch or the sequence")
    sides = [[0, *(widths.get(axis, (0, 0))[side] for axis in other_axes)] for side in (0, 1)]
    constants = {1: np.asarray(sides[0] + sides[1], np.int64)}
    if own_axes is not None:
        constants[3] = np.arange(len(other_axes) + 1)
    return PackedForm((0,), constants=constants)


def _tile(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Tile along axes other than batch and sequence."""
    repeats, sequence = input_facts[1].plain_integers(), _sequence(output)
    if repeats is None or _sequence(input_facts[0]) != sequence or repeats[0] != 1 or repeats[sequence] != 1:
        raise NoRule(f"{node.op} is over the batch or the sequence")
    counts = [1, *(count for axis, count in enumerate(repeats) if axis not in (0, sequence))]
    return PackedForm((0,), constants={1: np.asarray(counts, np.int64)})


def _split(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    if split_sizes(node, input_facts) is None:
        raise NoRule("Split has sizes that are not known")
    return _along_axes(node, input_facts, output)


def _slice(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    if axes_along(node, input_facts) is None or not all(facts.constant for facts in input_facts[1:]):
        raise NoRule("Slice has limits or axes that are not known")
    return _along_axes(node, input_facts, output)


def _transpose(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    _check_batch_and_sequence(node, input_facts, output, "the batch")
    axes = [packed_axis(axis, _sequence(input_facts[0])) for axis in permutation(node, input_facts[0].rank or 0)]
    packed = [0, *(axis for axis in axes if axis is not None)]
    return PackedForm((0,), {"perm": packed}, is_same=packed == sorted(packed))


def _reshape(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """The axes before the sequence and those after it may change, each group in itself."""
    source, target = input_facts[0].shape or (), output.shape or ()
    before, after = _sequence(input_facts[0]), _sequence(output)
    _check_batch_and_sequence(node, input_facts, output, "elements across the sequence")
    rest = [size.constant() for i, size in enumerate(target) if i not in (0, after)]
    static_sizes = [size.constant() for i, size in enumerate(source) if i not in (0, before)]
    if None in rest or None in static_sizes:
        raise NoRule(f"Reshape {'makes' if None in rest else 'reads'} axes of unknown sizes")
    attrs = {"allowzero": 0} if "allowzero" in node.attrs else {}
    return PackedForm((0,), attrs, {1: np.asarray([-1, *rest], np.int64)})


def _expand(node: gs.Node, input_facts: InputFacts, output: Facts) -> PackedForm:
    """Stretches axes that are neither batch nor sequence, or the one row of a sequence to all its tokens."""
    sequence, rank = _sequence(output), len(output.shape or ())
    sizes = [size.constant() or 0 for i, size in enumerate(output.shape or ()) if i not in (0, sequence)]
    target = {1: np.asarray([1, *sizes], np.int64)}
    if is_row_shape(input_facts[0].shape, rank, sequence):
        return PackedForm((), constants=target, rows=(0,))
    if token_axis(input_facts[0].shape) != sequence or input_facts[0].rank != rank:
        raise NoRule(f"{node.op} adds axes")
    return PackedForm((0,), constants=target)


_RULES: Mapping[str, Callable[[gs.Node, InputFacts, Facts], PackedForm]] = MappingProxyType(
    {
        **dict.fromkeys((record.name for record in OPERATORS.values() if record.has_axes), _along_axes),
        **dict.fromkeys(working(Work.NORM), _norm),
        "Concat": _concat,
        "DequantizeLinear": _quantize,
        "Expand": _expand,
        "Gather": _gather,
        "GatherElements": _elements,
        "MatMul": _matmul,
        "QuantizeLinear": _quantize,
        "OneHot": _one_hot,
        "Pad": _pad,
        "Reshape": _reshape,
        "Slice": _slice,
        "Scatter": _elements,
        "ScatterElements": _elements,
        "Split": _split,
        "Tile": _tile,
        "TopK": _top,
        "Transpose": _transpose,
        "Trilu": _triangle,
    }
)
