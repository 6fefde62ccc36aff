# SPDX-License-Identifier: Apache-2.0
"""Adds standard operators with one result each, under names that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .graph import Editor


class NodeBuilder:
    """Adds nodes and constants to an editor's graph.

    Args:
        editor: edits the graph.
        stem: what all names begin with.
        dtype: the type of results, unless a call says otherwise.
    """

    def __init__(self, editor: Editor, stem: str, dtype: Any = None) -> None:
        self._editor = editor
        self._stem = stem
        self._dtype = dtype

    def op(self, op: str, *inputs: gs.Tensor, dtype: Any = None, **attributes: Any) -> gs.Tensor:
        """The result of a new node."""
        kind = self._dtype if dtype is None else dtype
        return self._editor.node(op, inputs, stem=f"{self._stem}_{op.lower()}", dtype=kind, attrs=attributes)

    def reshape(self, tensor: gs.Tensor, sizes: gs.Tensor | Sequence[int], dtype: Any = None) -> gs.Tensor:
        """The tensor in another shape."""
        shape = sizes if isinstance(sizes, gs.Tensor) else self.integers(*sizes)
        kind = self._dtype if dtype is None else dtype
        return self._editor.reshape(tensor, shape, stem=f"{self._stem}_reshape", dtype=kind)

    def integers(self, *values: int) -> gs.Constant:
        """int64 [N], as axes and sizes are."""
        return self._editor.constant(f"{self._stem}_integers", np.asarray(values, np.int64))

    def number(self, value: float, dtype: Any = None) -> gs.Constant:
        """A scalar."""
        return self._editor.constant(f"{self._stem}_number", np.asarray(value, self._dtype if dtype is None else dtype))
