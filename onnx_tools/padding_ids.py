# SPDX-License-Identifier: Apache-2.0
"""What padding may hold where a model reads it: ids whose rows add nothing."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from .analysis import is_standard, is_token_input, readers_after, table_of
from .files import Model
from .importing import import_model

_MOST = 2
"""Rows of zeros after the first ones come from padding the table to a round size."""


def ids_of_zeros(model: Model) -> tuple[int, ...]:
    """The first ids with a row of zeros in the largest table; torch's `padding_idx` makes such a row.

    Args:
        model: the exported model.
    """
    graph = import_model(model)
    tables = [table for tensor in graph.inputs if is_token_input(tensor) for table in _tables_of(tensor)]
    if not tables:
        return ()
    values = max(tables, key=lambda table: int(table.shape[0])).values
    return tuple(int(row) for row in np.flatnonzero(~values.reshape(len(values), -1).any(axis=1))[:_MOST])


def _tables_of(tensor: gs.Tensor) -> list[gs.Constant]:
    """The tables that an input indexes."""
    readers = [node for node, _ in readers_after([tensor], lambda node, _: is_standard(node, "Cast", "Identity"))]
    return [table for node in readers if (table := table_of(node)) is not None and len(table.shape) > 1]
