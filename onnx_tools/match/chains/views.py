# SPDX-License-Identifier: Apache-2.0
"""What a view of scores is a view of."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import RESHAPES, S, is_standard, producer
from ...analysis.symbolic import Analysis, Shape


def square_source(analysis: Analysis, tensor: gs.Tensor) -> gs.Tensor | None:
    """The earliest tensor [..., S, S] that a tensor [..., S, S] is a view of, whatever lies between; None without one.

    Numbers keep their order, and so their indices in the last two axes.
    """
    source: gs.Tensor | None = None
    node = producer(tensor) if is_square(analysis[tensor].shape) else None
    while node is not None and is_standard(node, *RESHAPES):
        current = node.inputs[0]
        node = producer(current)
        if is_square(analysis[current].shape):
            source = current
    return source


def is_square(shape: Shape | None) -> bool:
    """Whether a shape is [..., S, S], as the shape of scores is."""
    return shape is not None and len(shape) > 2 and shape[-2:] == (S, S)
