# SPDX-License-Identifier: Apache-2.0
"""From the Softmax back to Q K^T: what multiplies the scores, what masks them, and what is added to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ...analysis import RESHAPES, B, Positional, S, is_standard, made_by, node_name, producer
from ...analysis.symbolic import Analysis, Shape
from .. import NoMatch
from ..chains import before_bounds, scale_of
from ..masks import MaskUse, TableRows, prove_one
from ..positions import GatheredScores, gathered_in, is_of_keys

_THROUGH = ("Cast", "Identity")


@dataclass
class Scores:
    """What becomes of Q K^T: it is scaled, masked, and tensors of positions are added to it, each times a factor."""

    factor: float = 1.0
    uses: list[MaskUse] = field(default_factory=list)
    positions: list[tuple[gs.Tensor, float]] = field(default_factory=list)
    gathered: list[GatheredScores] = field(default_factory=list)
    parted: bool = False  # whether the scores are [B*H,S,S] first and [B,H,S,S] later

    def add(self, positional: Positional, tensor: gs.Tensor, factor: float) -> None:
        """Takes in a tensor that is added to the scores, or a mask of the Attention operator. Raises NoMatch."""
        while (spread := made_by(tensor, "Expand")) is not None:  # adding to the scores broadcasts it in any case
            tensor = spread.inputs[0]
        analysis, node = positional.analysis, producer(tensor)
        facts = analysis[tensor]
        if tensor in positional:
            self.positions.append((tensor, factor))
        elif facts.expr is not None and not _adds_positions(positional, node):
            self.uses.append(MaskUse(facts, "add", factor))
        elif terms := _terms(tensor):
            for item, sign in terms:
                self.add(positional, item, factor * sign)
        elif node is not None and is_standard(node, "Where") and _constant_operand(analysis, node) is not None:
            use, rest = _selection(analysis, node, factor)
            self.uses.append(use)
            self.add(positional, rest, factor)
        elif is_of_keys(positional, tensor):
            self.positions.append((tensor, factor))
        elif node is not None and is_standard(node, *_THROUGH):
            self.add(positional, node.inputs[0], factor)
        else:
            scaled = scale_of(analysis, tensor)
            if scaled is None or scaled[1] == 0:
                raise NoMatch(
                    f"'{tensor.name}' is added to the scores and is neither a mask nor made of positions alone"
                )
            self.add(positional, scaled[0], factor * scaled[1])

    def sort_positions(self, shape: Shape, node: str, rows: TableRows, analysis: Analysis) -> None:
        """Tells masks from biases: what is made of positions alone may be a window, or the sum of one and a bias."""
        biases, waiting = list[tuple[gs.Tensor, float]](), self.positions[::-1]
        while waiting:
            tensor, factor = waiting.pop()
            if _proves(MaskUse(analysis[tensor], "add", factor), shape, node, rows):
                self.uses.append(MaskUse(analysis[tensor], "add", factor))
                continue
            terms = [(item, factor * sign) for item, sign in _terms(tensor)]
            if any(_proves(MaskUse(analysis[item], "add", sign), shape, node, rows) for item, sign in terms):
                waiting += terms
            else:
                biases.append((tensor, factor))
        self.positions = biases


def _proves(use: MaskUse, shape: Shape, node: str, rows: TableRows) -> bool:
    """Whether something that is added to the scores is a mask."""
    try:
        prove_one(use, shape, node, rows)
    except NoMatch:
        return False
    return True


def _terms(tensor: gs.Tensor) -> list[tuple[gs.Tensor, int]]:
    """The two tensors that a tensor is the sum of, each with its sign; none where it is something else."""
    maker = made_by(tensor, "Add", "Sub")
    return [] if maker is None else list(zip(maker.inputs, (1, 1 if maker.op == "Add" else -1), strict=True))


def scores_of(positional: Positional, softmax: gs.Node) -> tuple[gs.Node, Scores]:
    """The MatMul of Q and K, and what becomes of its result. Raises NoMatch."""
    analysis, scores, current = positional.analysis, Scores(), softmax.inputs[0]
    while True:
        node = producer(current)
        if node is None:
            raise NoMatch(f"the scores of '{node_name(softmax)}' are not computed from Q and K: they are an input")
        if is_standard(node, "MatMul"):
            return node, scores
        scaled = scale_of(analysis, current)
        if scaled is not None:
            current, part = scaled
            scores.factor *= part
            if scores.factor <= 0:
                raise NoMatch(f"'{node_name(node)}' multiplies the scores by {part}")
        elif (free := before_bounds(analysis, current)) is not None:
            current = free
        elif is_standard(node, "Add"):
            terms = [gathered_in(positional, tensor) for tensor in node.inputs]
            position = next((i for i, item in enumerate(terms) if item is not None), None)
            if position is None:
                position = _added_operand(positional, node)
                scores.add(positional, node.inputs[position], scores.factor)
            else:
                scores.gathered += [item.times(scores.factor) for item in terms[position] or ()]
            current = node.inputs[1 - position]
        elif is_standard(node, "Sub") and _is_known(positional, node.inputs[1]):
            scores.add(positional, node.inputs[1], -scores.factor)
            current = node.inputs[0]
        elif is_standard(node, "Where"):
            use, current = _selection(analysis, node, scores.factor)
            scores.uses.append(use)
        elif is_standard(node, "Cast"):
            current = node.inputs[0]
        elif joins_heads(analysis, node.outputs[0], node.inputs[0], node):
            scores.parted, current = True, node.inputs[0]
        else:
            what = "are capped by" if node.op == "Tanh" else "go through"
            raise NoMatch(f"the scores {what} '{node_name(node)}' ({node.op}) between Q K^T and the Softmax")


def joins_heads(analysis: Analysis, apart: gs.Tensor, result: gs.Tensor, node: gs.Node) -> bool:
    """Whether a node reshapes scores between [B,H,S,S] (`apart`) and [B*H,S,S] (`result`), whatever the direction."""
    four, three = analysis[apart].shape, analysis[result].shape
    if not is_standard(node, *RESHAPES) or four is None or three is None or len(four) != 4:
        return False
    return four[0] == B and four[2:] == (S, S) and three == (B * four[1], S, S)


def _added_operand(positional: Positional, node: gs.Node) -> int:
    """Which operand of an Add is added to the scores."""
    are_known = [_is_known(positional, tensor) for tensor in node.inputs]
    if are_known[0] != are_known[1]:
        return are_known.index(True)
    # The operands cannot be told apart: the one that no MatMul makes is taken for what is added; Scores.add checks it.
    analysis = positional.analysis
    for position in (1, 0):
        if made_by(node.inputs[position], "MatMul") is None and analysis[node.inputs[position]].rank is not None:
            other = node.inputs[1 - position]
            if made_by(other, "MatMul") is not None or scale_of(analysis, other) is not None:
                return position
    raise NoMatch(f"'{node_name(node)}' (Add) adds two tensors of which neither is a mask")


def _adds_positions(positional: Positional, node: gs.Node | None) -> bool:
    """Whether a node adds something for every query and key that is made of positions alone."""
    if node is None or not is_standard(node, "Add"):
        return False
    shapes = [positional.analysis[item].shape or () for item in node.inputs if item in positional]
    return any(shape[-2:] == (S, S) for shape in shapes)


def _is_known(positional: Positional, tensor: gs.Tensor) -> bool:
    """Whether a tensor is made of masks and positions."""
    if tensor in positional or positional.analysis[tensor].expr is not None or is_of_keys(positional, tensor):
        return True
    node = producer(tensor)
    if node is None or not is_standard(node, "Add", "Div", "Mul", "Sub", "Where", "Expand", *_THROUGH):
        return False
    return all(_is_known(positional, item) for item in node.inputs)


def _constant_operand(analysis: Analysis, node: gs.Node) -> tuple[int, float] | None:
    """The position of the operand of a Where that is one number, and that number; None where neither is."""
    for position in (2, 1):
        value = analysis[node.inputs[position]].scalar()
        if value is not None:
            return position, value
    return None


def _selection(analysis: Analysis, node: gs.Node, factor: float) -> tuple[MaskUse, gs.Tensor]:
    constant_operand = _constant_operand(analysis, node)
    if constant_operand is None:
        raise NoMatch(f"'{node_name(node)}' (Where) chooses between two tensors instead of a tensor and a number")
    position, value = constant_operand
    return MaskUse(analysis[node.inputs[0]], "select", factor, position == 2, value), node.inputs[3 - position]
