# SPDX-License-Identifier: Apache-2.0
"""What a rewritten graph takes: how many values its inputs have, and its width."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from .graph import is_padfree, is_standard
from .onnx_operators import Movement, moving
from .symbolic import Analysis, Poly
from .symbolic.arguments import axis_of
from .walks import readers_after


def limit_of(graph: gs.Graph, name: str) -> int | None:
    """How many values an input's ids may take: the rows of the smallest table that they choose from."""
    tensor = next(item for item in graph.inputs if item.name == name)
    limits = list[int]()
    for node, current in readers_after([tensor], _moves):
        if is_padfree(node, "PadfreeEmbedding"):
            limits += _embedding_limits(node, current)
        elif is_standard(node, "Gather") and len(node.inputs) > 1 and node.inputs[1] is current:
            table = table_of(node)
            limits += [] if table is None else [int(table.shape[0])]
    return min(limits, default=None)


def table_of(node: gs.Node) -> gs.Constant | None:
    """The constant that a Gather takes rows of; None for other nodes."""
    table = node.inputs[0] if is_standard(node, "Gather") else None
    return table if isinstance(table, gs.Constant) and axis_of(node, len(table.shape)) == 0 else None


_MOVEMENTS = moving(*Movement)


def _moves(node: gs.Node, tensor: gs.Tensor) -> bool:
    """Whether a node's results hold the tensor's values, all of them or some."""
    if is_standard(node, "Concat") or is_padfree(node, "PadfreePack", "PadfreeUnpack"):
        return True
    return is_standard(node, *_MOVEMENTS) and node.inputs[0] is tensor


def _embedding_limits(node: gs.Node, tensor: gs.Tensor) -> list[int]:
    """Rows of the tables of an embedding that `tensor` indexes."""
    tables = embedding_tables(node)
    names = ["ids"] + ["types"] * node.attrs["has_token_types"] + ["positions"] * node.attrs["has_positions"]
    return [tables[role] for role, item in zip(names, node.inputs, strict=False) if item is tensor and role in tables]


def embedding_tables(node: gs.Node) -> dict[str, int]:
    """Number of rows of each table of a PadfreeEmbedding."""
    position = 2 + node.attrs["has_token_types"] + node.attrs["has_positions"]
    roles = ["ids"] + ["positions"] * node.attrs["has_position_table"] + ["types"] * node.attrs["has_token_types"]
    return {role: int(node.inputs[position + i].shape[0]) for i, role in enumerate(roles)}


def first_width(analysis: Analysis, graph: gs.Graph) -> int | None:
    """The hidden size: the width of the first attention's result."""
    for node in graph.nodes:
        if is_padfree(node, "PadfreeAttention"):
            shape = analysis[node.outputs[0]].shape
            size: Poly | None = None if shape is None else shape[1]
            return None if size is None else size.constant()
    return None
