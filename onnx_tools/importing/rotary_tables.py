# SPDX-License-Identifier: Apache-2.0
"""Tables of RotaryEmbedding with one row for the whole batch: torch writes them, and onnxruntime 1.32 spreads none."""

from __future__ import annotations

from onnx import ModelProto

from .spreading import Spread

_TABLES = (1, 2)  # positions among the inputs
_POSITIONS = 3  # where there are positions, tables are looked up by them


def tables_of_one_row(model: ModelProto) -> list[Spread]:
    """The tables [B, S, D/2] of the standard's RotaryEmbedding that hold a row for every slot and are not spread yet.

    Every sequence is to have a row of its own; what has one stays as it is.
    """
    spread = {name for node in model.graph.node if node.op_type == "Expand" for name in node.output}
    like: dict[str, str] = {}  # a table -> the heads of the first node that reads it
    return [
        Spread(node.output[0], position, like.setdefault(node.input[position], node.input[0]), axis=0, trailing_axes=2)
        for node in model.graph.node
        if node.op_type == "RotaryEmbedding" and not node.domain and not any(node.input[_POSITIONS:])
        if not spread.issuperset(node.input[position] for position in _TABLES)
        for position in _TABLES
    ]
