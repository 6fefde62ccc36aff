# SPDX-License-Identifier: Apache-2.0
"""The error for a model in which no attention is found: it says what the model holds instead."""

from __future__ import annotations

from collections import Counter

import onnx_graphsurgeon as gs

from ...analysis import S, find_standard, node_name
from ...analysis.symbolic import Analysis, Shape, axis_of
from ...errors import RewriteError

_MOST = 8  # operators and Softmaxes that are named
_FREE = "export the transformer encoder itself, with Softmax or Attention operators over its sequence"


def no_attention(graph: gs.Graph, analysis: Analysis) -> RewriteError:
    """The error, with the shapes of the Softmaxes that are no attention, or with the operators where there is none."""
    softmaxes = find_standard(graph, "Softmax")
    if softmaxes:
        shapes = dict.fromkeys(f"'{node_name(node)}' is over {_text(analysis, node)}" for node in softmaxes)
        first_names, rest = list(shapes)[:_MOST], len(shapes) - _MOST
        more = f", and {rest} others" if rest > 0 else ""
        traced_tensor = next(
            (size for size in (_traced_length(analysis, node) for node in softmaxes) if size is not None), None
        )
        if traced_tensor is not None:
            return RewriteError(
                f"no attention found: scores have a row for every token and {traced_tensor} columns, whatever the "
                "sequence's "
                f"length ({'; '.join(first_names)}{more}): the file was traced with {traced_tensor} tokens, and holds "
                "this number, "
                "as torch.onnx.export writes nn.MultiheadAttention and nn.TransformerEncoder through TorchScript; "
                "export the model with torch.onnx.export(..., dynamo=True, dynamic_shapes=...)"
            )
        fixed_tensor = next(
            (size for size in (_traced_square(analysis, node) for node in softmaxes) if size is not None), None
        )
        if fixed_tensor is not None:
            return RewriteError(_traced_constants(graph, analysis, fixed_tensor))
        return RewriteError(
            f"no attention found: no Softmax is over [..., sequence, sequence] ({'; '.join(first_names)}{more}), and "
            f"there is no Attention operator; {_FREE}"
        )
    counts = Counter(f"{node.domain}.{node.op}" if node.domain else node.op for node in graph.nodes)
    names = [f"{count} {name}" for name, count in counts.most_common()]
    first_names = [*names[:_MOST], *([f"{len(names) - _MOST} others"] if len(names) > _MOST else [])]
    return RewriteError(
        "no attention found: the model has neither a Softmax nor an Attention operator; it holds "
        f"{', '.join(first_names)}; {_FREE}"
    )


def _traced_scores(analysis: Analysis, node: gs.Node) -> tuple[Shape, int] | None:
    """The shape of a Softmax's scores, and the number of their keys; None where that is no number above 1."""
    shape = analysis[node.inputs[0]].shape
    if shape is None or len(shape) < 3 or axis_of(node, len(shape)) != len(shape) - 1:
        return None
    keys = shape[-1].constant()
    return (shape, keys) if keys is not None and keys > 1 else None


def _traced_length(analysis: Analysis, node: gs.Node) -> int | None:
    """The number of keys that a Softmax has in place of the sequence's length; None for others."""
    shape, size = _traced_scores(analysis, node) or ((), None)
    return size if S in shape[:-1] and S not in shape[:2] else None


def _traced_square(analysis: Analysis, node: gs.Node) -> int | None:
    """The number that scores have in place of the sequence's length in both of their last axes; None for others."""
    shape, keys = _traced_scores(analysis, node) or ((), None)
    return keys if shape and shape[-2].constant() == keys and S not in shape else None


def _traced_constants(graph: gs.Graph, analysis: Analysis, size: int) -> str:
    """The message for a file that takes sequences of one length alone, whatever its inputs declare."""
    holder = next(
        (
            node
            for node in graph.nodes
            for tensor in node.inputs
            if analysis[tensor].constant and _has_size(analysis[tensor].shape, size) and _meets_tokens(analysis, node)
        ),
        None,
    )
    where = "" if holder is None else f": '{node_name(holder)}' ({holder.op}) reads a constant of {size} rows"
    return (
        f"no attention found over the sequence: scores are [..., {size}, {size}] for inputs of any length{where}; the "
        f"file was traced with {size} tokens, and holds this number although its axes are declared dynamic; export "
        "the model with positions that are cut to the input's length, or say that the length is fixed, and it is made "
        "dynamic: python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param SEQUENCE_AXIS "
        f"--dim_value {size} model.onnx fixed.onnx"
    )


def _has_size(shape: Shape | None, size: int) -> bool:
    """Whether an axis of a shape has this size."""
    return any(item.constant() == size for item in shape or ())


def _meets_tokens(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node reads a tensor that has an axis of the sequence."""
    return any(S in (analysis[tensor].shape or ()) for tensor in node.inputs)


def _text(analysis: Analysis, node: gs.Node) -> str:
    shape: Shape | None = analysis[node.inputs[0]].shape
    if shape is None:
        return "a tensor of unknown rank"
    axis = axis_of(node, None)
    return f"axis {axis} of [{', '.join(str(size) for size in shape)}]"
