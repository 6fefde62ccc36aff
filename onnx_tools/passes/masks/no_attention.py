# SPDX-License-Identifier: Apache-2.0
"""What is said of a model in which no attention is found: what it holds instead."""

from __future__ import annotations

from collections import Counter

import onnx_graphsurgeon as gs

from ...analysis.graph import is_standard, node_name
from ...analysis.layout import S
from ...analysis.symbolic import Analysis
from ...analysis.symbolic.facts import Shape
from ...errors import RewriteError

_MOST = 8  # operators and Softmaxes that are named
_FREE = "export the transformer encoder itself, with Softmax or Attention operators over its sequence"


def no_attention(graph: gs.Graph, analysis: Analysis) -> RewriteError:
    """The error, with the shapes of the Softmaxes that are no attention, or with the operators where there is none."""
    found = [node for node in graph.nodes if is_standard(node, "Softmax")]
    if found:
        shapes = dict.fromkeys(f"'{node_name(node)}' is over {_text(analysis, node)}" for node in found)
        listed, rest = list(shapes)[:_MOST], len(shapes) - _MOST
        more = f", and {rest} others" if rest > 0 else ""
        traced = next((size for size in (_traced_length(analysis, node) for node in found) if size is not None), None)
        if traced is not None:
            return RewriteError(
                f"no attention found: scores have a row for every token and {traced} columns, whatever the sequence's "
                f"length ({'; '.join(listed)}{more}): the file was traced with {traced} tokens, and holds this number, "
                "as torch.onnx.export writes nn.MultiheadAttention and nn.TransformerEncoder through TorchScript; "
                "export the model with torch.onnx.export(..., dynamo=True, dynamic_shapes=...)"
            )
        return RewriteError(
            f"no attention found: no Softmax is over [..., sequence, sequence] ({'; '.join(listed)}{more}), and there "
            f"is no Attention operator; {_FREE}"
        )
    counts = Counter(f"{node.domain}.{node.op}" if node.domain else node.op for node in graph.nodes)
    names = [f"{count} {name}" for name, count in counts.most_common()]
    listed = [*names[:_MOST], *([f"{len(names) - _MOST} others"] if len(names) > _MOST else [])]
    return RewriteError(
        f"no attention found: the model has neither a Softmax nor an Attention operator; it holds {', '.join(listed)}; "
        f"{_FREE}"
    )


def _traced_length(analysis: Analysis, node: gs.Node) -> int | None:
    """The number in the place of the sequence's length that a Softmax over keys goes over; None where it is none."""
    shape = analysis[node.inputs[0]].shape
    if shape is None or len(shape) < 3 or int(node.attrs.get("axis", -1)) not in (-1, len(shape) - 1):
        return None
    size = shape[-1].constant()
    return size if size is not None and size > 1 and S in shape[:-1] and S not in shape[:2] else None


def _text(analysis: Analysis, node: gs.Node) -> str:
    shape: Shape | None = analysis[node.inputs[0]].shape
    if shape is None:
        return "a tensor of unknown rank"
    axis = int(node.attrs.get("axis", -1))
    return f"axis {axis} of [{', '.join(str(size) for size in shape)}]"
