# SPDX-License-Identifier: Apache-2.0
"""From the Softmax forward to V: attention weights may be guarded against NaN, and masked once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...analysis import is_standard, producer
from ...analysis.symbolic import Analysis, Shape, movement
from .. import NoMatch
from ..chains import is_mask
from ..masks import MaskUse, PaddingMask, TableRows, prove_one
from ..values import ALL
from .scores import joins_heads

_KEYS, _LAST_TWO_SWAPPED = 4, (0, 1, 3, 2)  # the number of axes of [B,H,S,S]; the order that swaps queries and keys


@dataclass(frozen=True)
class Reader:
    """A MatMul that multiplies the weights with V, and what masks them on the way."""

    matmul: gs.Node
    uses: tuple[MaskUse, ...]


def readers_of(analysis: Analysis, softmax: gs.Tensor) -> list[Reader]:
    """The readers of a Softmax's weights, through casts, guards, masks and joined heads."""
    return _readers(analysis, [softmax], ())


def _readers(analysis: Analysis, chain: Sequence[gs.Tensor], uses: tuple[MaskUse, ...]) -> list[Reader]:
    """The readers of a chain's last tensor; each tensor of the chain is the weights where it is a number above 0."""
    readers, weights = list[Reader](), chain[-1]
    for node in weights.outputs:
        if is_standard(node, "MatMul") and node.inputs[0] is weights:
            readers.append(Reader(node, uses))
        elif is_standard(node, "Cast", "Identity", "Dropout") or joins_heads(analysis, weights, node.outputs[0], node):
            readers += _readers(analysis, [*chain, node.outputs[0]], uses)
        elif (more := _masked_by(analysis, node, chain)) is not None:
            readers += _readers(analysis, [*chain, node.outputs[0]], (*uses, *more))
    return readers


def _masked_by(analysis: Analysis, node: gs.Node, chain: Sequence[gs.Tensor]) -> tuple[MaskUse, ...] | None:
    """How a node masks the weights; () for a guard that leaves them as they are, None where it does something else."""
    weights = chain[-1]
    if analysis[node.outputs[0]].shape != analysis[weights].shape:
        return None
    if is_standard(node, "Mul"):
        other = node.inputs[1 - node.inputs.index(weights)]
        return (MaskUse(analysis[other], "select"),) if is_mask(analysis, other) else None
    if not is_standard(node, "Where") or (node.inputs[1] is weights) == (node.inputs[2] is weights):
        return None
    position = 1 if node.inputs[1] is weights else 2
    if position == 2 and _is_no_number(node.inputs[0], chain):
        return ()
    condition = analysis[node.inputs[0]]
    masks = analysis[node.inputs[3 - position]].scalar() == 0 and condition.expr is not None
    return (MaskUse(condition, "select", keeps=position == 1),) if masks else None


def _is_no_number(test: gs.Tensor, chain: Sequence[gs.Tensor]) -> bool:
    """Whether a test is only true for weights that are NaN: those of rows without any kept key, which no token has."""
    node = producer(test)
    if node is None:
        return False
    if is_standard(node, "Cast"):
        return _is_no_number(node.inputs[0], chain)
    if is_standard(node, "And"):
        return any(_is_no_number(item, chain) for item in node.inputs)
    if is_standard(node, "IsNaN", "IsInf"):
        return _is_one_of(node.inputs[0], chain)
    same = producer(node.inputs[0]) if is_standard(node, "Not") else None
    return (
        same is not None
        and is_standard(same, "Equal")
        and all(item is same.inputs[0] for item in same.inputs)
        and (_is_one_of(same.inputs[0], chain))
    )


def _is_one_of(tensor: gs.Tensor, chain: Sequence[gs.Tensor]) -> bool:
    node = producer(tensor)
    if any(tensor is item for item in chain):
        return True
    return node is not None and is_standard(node, "Cast") and _is_one_of(node.inputs[0], chain)


def check_masked_alike(uses: Sequence[MaskUse], mask: PaddingMask, scores: Shape, node: str, rows: TableRows) -> None:
    """Raises NoMatch unless each use masks no more than the scores' mask does, or masks queries by its rule."""
    for use in uses:
        if not _masks(use, mask, scores, node, rows) and not _masks(
            _transpose(use), PaddingMask(mask.keeps), scores, node, rows
        ):
            raise NoMatch(f"the weights of Softmax '{node}' are masked differently from the scores before it")


def _masks(use: MaskUse | None, mask: PaddingMask, scores: Shape, node: str, rows: TableRows) -> bool:
    """Whether a use keeps all that the mask keeps."""
    if use is None:
        return False
    try:
        proof = prove_one(use, scores, node, rows)
    except NoMatch:
        return False
    return proof.keeps in (None, mask.keeps) and proof.window in (ALL, mask.window)


def _transpose(use: MaskUse) -> MaskUse | None:
    """The use with queries and keys swapped; None where it does not have four axes."""
    if use.facts.rank != _KEYS:
        return None
    return MaskUse(
        movement.transpose(use.facts, list(_LAST_TWO_SWAPPED)), use.kind, use.factor, use.keeps, use.masked_value
    )
