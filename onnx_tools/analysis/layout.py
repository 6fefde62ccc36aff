# SPDX-License-Identifier: Apache-2.0
"""Layouts of tensors, derived from their shapes in B, S and T."""

from __future__ import annotations

import functools
from enum import Enum

import onnx_graphsurgeon as gs

from .symbolic import Analysis, Poly
from .symbolic.facts import Facts, Shape
from .walks import tensors_before

B, S, T = Poly.atom("B"), Poly.atom("S"), Poly.atom("T")


class Layout(str, Enum):
    """How a tensor holds the tokens of a batch."""

    PACKED = "packed"  # [T,...]
    PER_SEQUENCE = "per_sequence"  # [B,...]
    CONSTANT = "constant"  # the same for every batch
    PADDED = "padded"  # [B,S,...], or anything else that S is in


def is_token_input(tensor: gs.Tensor) -> bool:
    """Whether an input of the original is [B,S] or [B,S,N].

    Others have a row for every sequence, [B] or [B,N], or are shared by all, [] or [N].
    """
    return list(tensor.shape or ())[:2] == ["B", "S"]


def is_shared_input(tensor: gs.Tensor) -> bool:
    """Whether an input of the original is the same for a whole batch: [] or [N]."""
    return not any(isinstance(size, str) for size in tensor.shape or ())


def layout_of(facts: Facts) -> Layout:
    """The layout that follows from a tensor's shape; what is neither known nor constant counts as padded."""
    shape = facts.shape
    if shape is None:
        return Layout.CONSTANT if facts.constant else Layout.PADDED
    atoms = set().union(*(size.atoms() for size in shape)) if shape else set()
    if shape and shape[0] == T and "S" not in atoms and "B" not in atoms:
        return Layout.PACKED
    if atoms == {"B"} and shape[0] == B:
        return Layout.PER_SEQUENCE
    return Layout.CONSTANT if not atoms and facts.constant else Layout.PADDED


def is_token_shape(shape: Shape | None) -> bool:
    """Whether the shape is [B,S,...] with neither B nor S in the other axes."""
    return token_axis(shape) == 1


@functools.lru_cache(4096)
def token_axis(shape: Shape | None) -> int | None:
    """Which axis is the sequence in [B,...,S,...], such as the 2 of [B,H,S,D]; None for any other shape.

    Packed, such a tensor is [T,...] with the other axes in their order.
    """
    if shape is None or len(shape) < 2 or shape[0] != B:
        return None
    axes = [axis for axis, size in enumerate(shape) if size == S]
    if len(axes) != 1 or any(({"B", "S", "T"} & size.atoms()) for i, size in enumerate(shape) if i not in (0, axes[0])):
        return None
    return axes[0]


def packed_axis(axis: int, sequence: int) -> int | None:
    """Where an axis of [B,...,S,...] is in [T,...]; None for those of batch and sequence."""
    if axis in (0, sequence):
        return None
    return axis if axis < sequence else axis - 1


def rows_before(node: gs.Node, analysis: Analysis) -> str | None:
    """The name of the nearest tensor [B,S,E] of floats that a node is computed from."""
    for tensor in tensors_before(node.inputs):
        facts = analysis[tensor]
        shape = facts.shape or ()
        if len(shape) == 3 and tuple(shape[:2]) == (B, S) and (facts.dtype or "").startswith("float"):
            return str(tensor.name)
    return None
