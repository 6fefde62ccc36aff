# SPDX-License-Identifier: Apache-2.0
"""Masks of the Attention operator with one row for all queries: ONNX broadcasts them, onnxruntime 1.32 does not."""

from __future__ import annotations

from onnx import ModelProto

from .spreading import Spread

_MASK = 3  # its position among the inputs of Attention


def masks_of_one_row(model: ModelProto) -> list[Spread]:
    """The masks [..., 1, keys] of Attention nodes, where the file tells shapes: every query is to have its own row."""
    graph = model.graph
    ranks = {item.name: list(item.type.tensor_type.shape.dim) for item in (*graph.value_info, *graph.input)}
    sizes = {name: [dim.dim_value for dim in dims] for name, dims in ranks.items()}
    sizes |= {item.name: list(item.dims) for item in graph.initializer}
    spreads = []
    for node in graph.node:
        if node.op_type == "Attention" and not node.domain and len(node.input) > _MASK:
            mask, queries = sizes.get(node.input[_MASK], []), sizes.get(node.input[0], [])
            if len(mask) > 1 and mask[-2] == 1 and len(queries) in (3, 4) and queries[-2] != 1:
                spreads.append(Spread(node.output[0], _MASK, node.input[0], axis=-2, trailing_axes=1))
    return spreads
