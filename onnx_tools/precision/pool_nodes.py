# SPDX-License-Identifier: Apache-2.0
"""PadfreePool of single rows as standard operators, where it has to stay float32 in a half precision graph."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..analysis import Editor, node_name


def add_standard_pool(editor: Editor, node: gs.Node) -> None:
    """Adds nodes that take such rows, zeros for an empty sequence, as a PadfreePool does, and make its output."""
    new, (x, cu_seqlens), mode = editor.with_stem(node_name(node)), node.inputs, node.attrs["mode"]
    zero, one, begin, second = new.scalar(0, np.int32), new.scalar(1, np.int32), new.integers(0), new.integers(1)
    starts = new.op("Slice", cu_seqlens, begin, [-1], begin)
    ends = new.op("Slice", cu_seqlens, second, [np.iinfo(np.int64).max], begin)
    lengths = new.op("Sub", ends, starts)
    rows = x
    if mode != "each":
        tokens = new.op("Slice", new.op("Shape", x), begin, second, begin)
        last_token = new.op("Sub", new.op("Cast", tokens, to=TensorProto.INT32), one)
        slots = starts if mode == "first" else new.op("Max", new.op("Sub", ends, one), zero)
        indices = new.op("Min", slots, last_token)  # empty sequences may begin after all tokens
        rows = new.op("Gather", x, indices, axis=0)
    some = new.op("Unsqueeze", new.op("Greater", lengths, zero), second)
    new.op("Where", some, rows, 0.0, output=node.outputs[0])
