# SPDX-License-Identifier: Apache-2.0
"""Shared prefixes: sequences of a batch that begin with the same tokens may compute them once.

The prefix becomes one more sequence of the batch, and an input has its number for every sequence that continues it.
That gives the same answers only where causal attention is the one thing that mixes tokens, and nothing is given out but
rows of last tokens: what a token gets then depends on those before it alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import (
    Layout,
    find_padfree,
    is_padfree,
    layout_of,
    node_name,
    padfree_attributes,
    padfree_inputs,
    padfree_outputs,
    present,
    set_padfree_inputs,
)
from ..analysis.symbolic import Analysis
from ..errors import RewriteError
from ..match import Miss
from ..operators import DOMAIN
from .base import PassResult
from .interface import SEQ_LENS

NAME = "prefixes"
PREFIX = "prefix"

_OF_TOKENS = (
    *("PadfreeLayerNorm", "PadfreePostNorm", "PadfreeLinear", "PadfreeLinearFp8", "PadfreeLinearInt8"),
    *("PadfreeRotary", "PadfreeQkNormRotary"),
)
"""Operators that compute every token by itself, at the position that they are given."""
_OF_LAST_TOKENS = ("last", "each")
_READERS = {"cu_seqlens": ("PadfreeAttention", "PadfreePool", "PadfreeEmbedding"), "tasks": ("PadfreeAttention",)}


def prefixes(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Adds the input `prefix` where it is proved that sequences may continue others; otherwise a miss says why not."""
    reason = next(_reasons(graph, analysis), None)
    if reason is not None:
        return PassResult(NAME, 0, (Miss(PREFIX, reason),))
    prefix = gs.Variable(PREFIX, np.dtype(np.int32), ["F"])
    graph.inputs = [*graph.inputs, prefix]
    attentions = find_padfree(graph, "PadfreeAttention")
    counting = [node for node in find_padfree(graph, "PadfreeSchedule") if node.attrs["has_positions"]]
    for node in (*attentions, *counting):
        set_padfree_inputs(node, {**padfree_inputs(node), PREFIX: prefix}, has_prefix=1)
    return PassResult(NAME, len(attentions))


def check_prefixes(result: PassResult) -> None:
    """Raises RewriteError where prefixes were asked for and cannot be."""
    for miss in result.missed:
        raise RewriteError(
            f"sequences cannot share prefixes: {miss.reason}; leave --shared-prefixes out, and every sequence computes "
            "all of its tokens"
        )


def _reasons(graph: gs.Graph, analysis: Analysis) -> Iterator[str]:
    """Why sequences may not continue others; what says most of the model comes first."""
    attentions = find_padfree(graph, "PadfreeAttention")
    if not attentions:
        yield "the model has no attention that is packed"
    for node in [*attentions, *graph.nodes]:
        reason = _of_operator(node) if node.domain == DOMAIN else _of_standard(node, analysis)
        if reason is not None:
            yield reason
    yield from _of_inputs(graph)
    yield from _of_outputs(graph, analysis)


def _of_outputs(graph: gs.Graph, analysis: Analysis) -> Iterator[str]:
    for tensor in graph.outputs:
        layout = layout_of(analysis[tensor])
        if layout is Layout.PACKED:
            yield f"output '{tensor.name}' has a row for every token, also for those of the prefix (--pooling last)"
        elif layout is not Layout.PER_SEQUENCE:
            yield f"output '{tensor.name}' is no row for every sequence"


def _of_inputs(graph: gs.Graph) -> Iterator[str]:
    for tensor in graph.inputs:
        if tensor.name == SEQ_LENS:
            yield from _unknown_readers(tensor, ("PadfreeSchedule",))
        elif list(tensor.shape or ()) != ["T"] or np.dtype(tensor.dtype).kind not in "iu":
            shape = ", ".join(str(size) for size in tensor.shape or ())
            yield f"input '{tensor.name}' [{shape}] is not one number for every token"
        elif tensor.name == PREFIX:
            yield f"the model has an input '{PREFIX}' of its own"


def _of_operator(node: gs.Node) -> str | None:
    """Why an operator of padfree's does not allow prefixes; None where it does."""
    attributes = padfree_attributes(node)
    if is_padfree(node, *_OF_TOKENS):
        return None
    if is_padfree(node, "PadfreeAttention"):
        if attributes["window_right"] != 0:
            return f"attention '{node_name(node)}' is not causal: tokens see those after them"
        return None
    if is_padfree(node, "PadfreePool"):
        mode = attributes["mode"]
        return None if mode in _OF_LAST_TOKENS else f"'{node_name(node)}' pools by {mode}, which reads all tokens"
    if is_padfree(node, "PadfreeEmbedding"):
        counts = attributes["has_position_table"] and not attributes["has_positions"]
        return f"embedding '{node_name(node)}' counts positions by itself" if counts else None
    if is_padfree(node, "PadfreeSchedule"):
        return _of_schedule(node)
    return f"'{node_name(node)}' ({node.op}) stays padded"


def _of_schedule(node: gs.Node) -> str | None:
    outputs = padfree_outputs(node)
    if "token_index" in outputs:
        return f"'{node_name(node)}' lists the slots of padded tokens"
    reasons_found = [_unknown_readers(outputs[name], names) for name, names in _READERS.items() if name in outputs]
    return next((reason for reasons in reasons_found for reason in reasons), None)


def _unknown_readers(tensor: gs.Tensor, operators: tuple[str, ...]) -> Iterator[str]:
    for node in tensor.outputs:
        if not is_padfree(node, *operators):
            yield f"'{node_name(node)}' ({node.op}) reads where sequences begin, or how long they are"


def _of_standard(node: gs.Node, analysis: Analysis) -> str | None:
    """Why a node of ONNX's own operators does not: it takes tokens to sequences, or these to tokens.

    Others compute every token by itself: that is what packed layouts ask for, where filler must not change a token.
    """
    has = {layout_of(analysis[tensor]) for tensor in present([*node.inputs, *node.outputs])}
    if {Layout.PACKED, Layout.PER_SEQUENCE} <= has:
        return f"'{node_name(node)}' ({node.op}) reads tokens of other places in their sequence"
    return None
