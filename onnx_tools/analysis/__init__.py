# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph without running it: its tensors' shapes, layouts, values and limits."""

from .graph import (
    Editor,
    dtype_name,
    find_padfree,
    is_output,
    is_padfree,
    is_standard,
    made_by,
    padfree_attributes,
    padfree_inputs,
    padfree_outputs,
    producer,
    remove_nodes,
    replace_node,
)
from .special_ids import IdRule, with_rules
from .token_elements import (
    BATCH,
    SLOTS,
    Dims,
    MaskArray,
    dims_of,
    fits,
    packed_rows,
    padded_dims,
    token_elements,
    token_numbers,
)

__all__ = [
    "BATCH",
    "SLOTS",
    "Dims",
    "Editor",
    "IdRule",
    "MaskArray",
    "dims_of",
    "dtype_name",
    "find_padfree",
    "fits",
    "is_output",
    "is_padfree",
    "is_standard",
    "made_by",
    "packed_rows",
    "padded_dims",
    "padfree_attributes",
    "padfree_inputs",
    "padfree_outputs",
    "producer",
    "remove_nodes",
    "replace_node",
    "token_elements",
    "token_numbers",
    "with_rules",
]
