# SPDX-License-Identifier: Apache-2.0
"""Tables of RotaryEmbedding with one row for the whole batch: torch writes them, onnxruntime 1.32 takes none."""

from __future__ import annotations

from onnx import ModelProto

from .spreading import Spread

_TABLES = (1, 2)  # their positions among the inputs
_POSITIONS = 3  # where this input is there, it chooses rows of the tables


def tables_of_one_row(model: ModelProto) -> list[Spread]:
    """The tables of the standard's RotaryEmbedding that hold angles for every slot and are not expanded yet.

    They are to become [B, S, D/2], with a row for every sequence; expanding one that has these changes nothing.
    """
    spread = {name for node in model.graph.node if node.op_type == "Expand" for name in node.output}
    like: dict[str, str] = {}  # heads of the first node that reads a table, by table
    return [
        Spread(node.output[0], position, like.setdefault(node.input[position], node.input[0]), axis=0, trailing_axes=2)
        for node in model.graph.node
        if node.op_type == "RotaryEmbedding" and not node.domain and not any(node.input[_POSITIONS:])
        if not spread.issuperset(node.input[position] for position in _TABLES)
        for position in _TABLES
    ]
