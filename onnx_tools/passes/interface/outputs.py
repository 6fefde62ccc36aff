# SPDX-License-Identifier: Apache-2.0
"""Outputs of the packed interface: [T,...] instead of [B,S,...]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    BATCH,
    SLOTS,
    B,
    Editor,
    S,
    dims_of_shape,
    is_standard,
    is_token_shape,
    producer,
    rows_before,
)
from ...analysis.symbolic import Analysis, Element, Facts, Poly, leaves_of, permutation
from ...errors import RewriteError
from ..base import Boundary, pack
from ..unknown_shapes import unknown_because


def pack_outputs(editor: Editor, analysis: Analysis, boundary: Boundary) -> None:
    """Packs every output that is [B,S,...], or that holds such tokens in another order, to [T,...] of the same name."""
    graph = editor.graph
    fitting = [
        str(tensor.name)
        for tensor in graph.outputs
        if _in_token_order(tensor, analysis) is not None or _has_parts(analysis[tensor])
    ]
    for position, tensor in enumerate(graph.outputs):
        source = _in_token_order(tensor, analysis)
        if source is None:
            if tensor.name not in fitting:
                raise _shared_output_error(tensor, analysis, fitting)
            continue
        facts = analysis[source]
        packed = pack(editor, source, boundary, facts.dtype)
        name, tensor.name = tensor.name, editor.fresh(f"{tensor.name}_padded")
        if packed.dtype is None and facts.dtype is not None:
            packed.dtype = np.dtype(facts.dtype)
        is_shared = any(packed is item for item in [*graph.inputs, *graph.outputs])
        result = editor.op("Identity", packed, stem=name) if is_shared else packed
        result.name = name
        graph.outputs[position] = result


def _in_token_order(output: gs.Tensor, analysis: Analysis) -> gs.Tensor | None:
    """The tensor [B,S,...] that an output is, or that it merges to [B*S,...] or transposes to [S,B,...]; or None."""
    shape = analysis[output].shape
    if is_token_shape(shape):
        return output
    node = producer(output)
    if node is None or not shape or not is_standard(node, "Reshape", "Transpose"):
        return None
    source = node.inputs[0]
    before = analysis[source].shape
    if before is None or not is_token_shape(before):
        return None
    if node.op == "Reshape":
        return source if shape == (B * S, *before[2:]) else None
    return source if permutation(node, len(before)) == [1, 0, *range(2, len(before))] else None


def _shared_output_error(tensor: gs.Tensor, analysis: Analysis, others: Sequence[str]) -> RewriteError:
    """The error for an output of which no part is known to belong to a sequence; `others` are outputs that may stay."""
    shape = analysis[tensor].shape or ()
    dims = dims_of_shape(analysis[tensor].shape)
    if dims is None:
        what = f"has no known shape{unknown_because(analysis, tensor)}"
    elif any(isinstance(size, str) for size in dims):
        sizes = [str(size) if _is_known(size) else "a size that follows from values" for size in shape]
        what = f"has the shape [{', '.join(sizes)}]"
    else:
        what = "is one result of the whole batch"
    rows = None if all(map(_is_known, shape)) else _rows_of(tensor, analysis)
    if others:
        leave = f"leave it out: --outputs {','.join(others)}"
    elif rows is not None:
        leave = f"keep what comes before it, a row for every token, and do the rest outside: --outputs {rows}"
    elif dims is None:
        leave = "correct that in the model and export it again"
    else:
        leave = "export the model again with one row per sequence, or per token, in it"
    return RewriteError(
        f"output '{tensor.name}' {what}: which part of it is a sequence's own is not known, and without padding every "
        f"sequence gets its own; {leave}; or choose the padded interface"
    )


def _is_known(size: Poly) -> bool:
    """Whether a size depends on B and S alone, not on the values of inputs."""
    return size.atoms() <= {BATCH, SLOTS}


def _rows_of(tensor: gs.Tensor, analysis: Analysis) -> str | None:
    maker = producer(tensor)
    return None if maker is None else rows_before(maker, analysis)


def _has_parts(facts: Facts) -> bool:
    """Whether it is known which part of an output belongs to each sequence."""
    dims = dims_of_shape(facts.shape)
    sizes = [size for size in dims or () if isinstance(size, str)]
    if dims is not None and sizes.count(BATCH) == 1 and {BATCH, SLOTS}.issuperset(sizes):
        return True
    reads_tokens = facts.expr is None or bool(leaves_of(facts.expr, Element))
    # The output is the same for every sequence, or cut to its length.
    return dims is not None and {SLOTS}.issuperset(sizes) and (facts.constant or not reads_tokens)
