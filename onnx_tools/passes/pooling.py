# SPDX-License-Identifier: Apache-2.0
"""One vector per sequence: first or last token, mean or maximum over kept tokens, with L2 normalisation after it."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..analysis import (
    Editor,
    S,
    argument,
    is_output,
    is_standard,
    made_by,
    node_name,
    producer,
    readers_after,
    used_once,
)
from ..analysis.symbolic import Analysis, Facts, Poly, slice_arguments
from ..match import Miss, NoMatch
from ..match.chains.chosen_token import chosen_token
from ..match.values import Mask, mask_of
from .base import PassResult, boundary_of, pack, pool_tokens

NAME = "pooling"
_MAX_NORM_EPSILON = 1e-6
_ANY_END = 2**31 - 1  # ends of slices from here on stand for the last slot
_LOWEST = -1e4  # hidden states of trained models are far above it


def pooling(graph: gs.Graph, analysis: Analysis, *, left_padded: bool = False) -> PassResult:
    """Replaces first-token, last-token, masked-mean and masked-maximum pooling by PadfreePool.

    With `left_padded`, the last slot of every sequence holds its last token.
    """
    editor, boundary = Editor(graph), boundary_of(graph)
    mask = mask_of(analysis[boundary.mask])
    replaced_count, misses, counting_names, last_names = 0, list[Miss](), list[str](), list[str]()
    for node in list(graph.nodes):
        token = chosen_token(analysis, node, mask)
        takes_last = left_padded and _takes_last_slot(analysis, node)
        try:
            match = ("last", node.inputs[0], node.outputs[0]) if takes_last else _of_all(analysis, node, mask)
            match = match or _first_token(analysis, node) or _mean(analysis, node, mask)
            match = match or _maximum(analysis, node, mask)
        except NoMatch as reason:
            misses.append(Miss(node_name(node), str(reason)))
            continue
        if token is not None:
            match = token.mode, token.x, node.outputs[0]
            if token.by_count and token.mode == "last":
                counting_names.append(
                    f"'{node_name(node)}' ({node.op}) takes the slot at the number of tokens less one"
                )
        if match is None:
            continue
        if takes_last:
            last_names.append(f"'{node_name(node)}' ({node.op}) takes the last slot")
        mode, x, pooled = match
        if mode == "first" and (token is None or token.by_count) and _reaches_tokens(analysis, pooled):
            counting_names.append(f"'{node_name(node)}' ({node.op}) takes slot 0, and tokens read it")
        pooled = _squeeze(analysis, graph, pooled)
        normalized = _normalization(analysis, graph, pooled)
        target = normalized if normalized is not None else pooled
        shape, dtype = analysis[target].shape, analysis[x].dtype
        has_axis = shape is not None and len(shape) == 3
        result = editor.variable("pooled", target.dtype) if has_axis else target
        packed = pack(editor, x, boundary, dtype)
        pool_tokens(editor, packed, boundary, result, mode, normalize=normalized is not None)
        if has_axis:
            editor.unsqueeze(result, 1, output=target)
        replaced_count += 1
    right, left = tuple(counting_names), tuple(last_names)
    return PassResult(NAME, replaced_count, tuple(misses), right_padded=right, left_padded=left)


def _reaches_tokens(analysis: Analysis, tensor: gs.Tensor) -> bool:
    """Whether anything along the sequence is made from a tensor."""
    readers = [node for node, _ in readers_after([tensor], lambda node, _: not is_standard(node, "Shape"))]
    outputs = [output for node in readers if not is_standard(node, "Shape") for output in node.outputs]
    shapes = [analysis[output].shape for output in outputs]
    return any(shape is None or any("S" in size.atoms() for size in shape) for shape in shapes)


def _is_hidden(analysis: Analysis, tensor: gs.Tensor) -> bool:
    facts = analysis[tensor]
    if facts.shape is None or len(facts.shape) != 3 or not (facts.dtype or "").startswith(("float", "bfloat")):
        return False
    tokens = facts.shape[:2] == (Poly.atom("B"), Poly.atom("S"))
    return tokens and facts.shape[2].constant() is not None and facts.expr is None


def _first_token(analysis: Analysis, node: gs.Node) -> tuple[str, gs.Tensor, gs.Tensor] | None:
    """x[:, 0] by a Gather, or x[:, 0:1] by a Slice, of a tensor [B,S,E]."""
    if not is_standard(node, "Gather", "Slice") or not _is_hidden(analysis, node.inputs[0]):
        return None
    facts = [analysis[tensor] for tensor in node.inputs]
    if is_standard(node, "Gather"):
        if analysis.axes_along(node) != [1]:
            return None
        if facts[1].plain_integers() != [0] or facts[1].rank not in (0, 1):
            raise NoMatch(f"'{node_name(node)}' (Gather) takes other tokens than the first")
        return "first", node.inputs[0], node.outputs[0]
    limits = slice_arguments(node, facts)
    if limits is None or 1 not in limits[2]:
        return None
    starts, ends, axes, steps = limits
    if axes != [1] or steps != [1] or starts[0].constant() != 0 or ends[0].constant() != 1:
        if starts[0].constant() == 0 and ends[0] == Poly.atom("S"):
            return None
        raise NoMatch(f"'{node_name(node)}' (Slice) takes other tokens than the first")
    return "first", node.inputs[0], node.outputs[0]


def _takes_last_slot(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node is x[:, -1] or x[:, -1:] of a tensor [B,S,E]."""
    if not is_standard(node, "Gather", "Slice") or not _is_hidden(analysis, node.inputs[0]):
        return False
    facts = [analysis[tensor] for tensor in node.inputs]
    if is_standard(node, "Gather"):
        slots = facts[1].integers() if facts[1].rank in (0, 1) else None
        return analysis.axes_along(node) == [1] and slots is not None and slots in ([Poly.of(-1)], [S - 1])
    limits = slice_arguments(node, facts)
    if limits is None or limits[2:] != ([1], [1]):
        return False
    end = limits[1][0]
    return limits[0][0] in (Poly.of(-1), S - 1) and (end == S or (end.constant() or 0) >= _ANY_END)


def _of_all(analysis: Analysis, node: gs.Node, mask: Mask) -> tuple[str, gs.Tensor, gs.Tensor] | None:
    """Without a mask every slot is a token: the mean, the maximum or the last of all slots is that of the tokens."""
    if mask.source is not None or not is_standard(node, "ReduceMean", "ReduceMax", "Gather"):
        return None
    if not _is_hidden(analysis, node.inputs[0]):
        return None
    if is_standard(node, "Gather"):
        index = analysis[node.inputs[1]]
        last = analysis.axes_along(node) == [1] and index.plain_integers() == [-1] and index.rank in (0, 1)
        return ("last", node.inputs[0], node.outputs[0]) if last else None
    if analysis.axes_along(node) != [1]:
        return None
    return "mean" if node.op == "ReduceMean" else "max", node.inputs[0], node.outputs[0]


def _mean(analysis: Analysis, node: gs.Node, mask: Mask) -> tuple[str, gs.Tensor, gs.Tensor] | None:
    """sum(x * mask) / max(sum(mask), tiny)."""
    if not is_standard(node, "Div"):
        return None
    total = made_by(node.inputs[0], "ReduceSum")
    if total is None or analysis.axes_along(total) != [1]:
        return None
    product = made_by(total.inputs[0], "Mul")
    if product is None:
        return None
    pairs = [(product.inputs[i], product.inputs[1 - i]) for i in (0, 1)]
    hidden = [(x, weight) for x, weight in pairs if _is_hidden(analysis, x) and analysis[weight].expr is not None]
    if not hidden:
        return None
    x, weight = hidden[0]
    if not _is_mask(analysis[weight], mask, 3) or not _counts_mask(analysis, node.inputs[1], mask):
        return None  # another sum: see sums.py
    return "mean", x, node.outputs[0]


def _maximum(analysis: Analysis, node: gs.Node, mask: Mask) -> tuple[str, gs.Tensor, gs.Tensor] | None:
    """The maximum over the sequence of x where the mask keeps a token, and of a very low number elsewhere."""
    if not is_standard(node, "ReduceMax") or analysis.axes_along(node) != [1]:
        return None
    choice = made_by(node.inputs[0], "Where")
    if choice is None:
        return None
    for low, hidden, token_value in ((1, 2, 0), (2, 1, 1)):
        number, x = analysis[choice.inputs[low]].scalar(), choice.inputs[hidden]
        if number is None or not _is_hidden(analysis, x):
            continue
        if number > _LOWEST:
            raise NoMatch(f"'{node_name(node)}' sets masked tokens to {number}, not below {_LOWEST}")
        if not _is_mask(analysis[choice.inputs[0]], mask, 3, token_value):
            raise NoMatch(f"'{node_name(node)}' does not leave out exactly the tokens that {_mask_name(mask)} does")
        return "max", x, node.outputs[0]
    return None


def _is_mask(facts: Facts, mask: Mask, rank: int, token_value: int = 1) -> bool:
    """Whether a tensor [B,S,...] is `token_value` where a slot is kept and 1 - `token_value` where it is masked."""
    return facts.rank == rank and mask.outcomes(facts.expr, ("i0", "i1")) == (
        float(token_value),
        float(1 - token_value),
    )


def _mask_name(mask: Mask) -> str:
    return "all tokens" if mask.source is None else f"the mask '{mask.source}'"


def _counts_mask(analysis: Analysis, tensor: gs.Tensor, mask: Mask) -> bool:
    """Whether the tensor is the number of kept tokens, perhaps with a lower bound of at most 1."""
    while True:
        node = producer(tensor)
        if node is None:
            return False
        if is_standard(node, "Clip", "Max"):
            if not _at_most(analysis, node, 1.0):
                return False
            tensor = node.inputs[0]
        elif is_standard(node, "Expand", "Unsqueeze", "Cast", "Identity"):
            tensor = node.inputs[0]
        elif is_standard(node, "ReduceSum"):
            facts = analysis[node.inputs[0]]
            return analysis.axes_along(node) == [1] and _is_mask(facts, mask, facts.rank or 0)
        else:
            return False


def _at_most(analysis: Analysis, node: gs.Node, limit: float) -> bool:
    """Whether a Clip or Max only sets a lower bound, a known number from 0 to `limit`."""
    low = argument(node, 1)
    number = node.attrs.get("min") if low is None else analysis[low].scalar()
    return argument(node, 2) is None and "max" not in node.attrs and number is not None and 0 <= float(number) <= limit


def _squeeze(analysis: Analysis, graph: gs.Graph, pooled: gs.Tensor) -> gs.Tensor:
    """The tensor [B,E] where that is all that becomes of a tensor [B,1,E]; otherwise the tensor itself."""
    squeeze = pooled.outputs[0] if used_once(graph, pooled) else None
    if squeeze is None or not is_standard(squeeze, "Squeeze") or analysis[pooled].rank != 3:
        return pooled
    return squeeze.outputs[0] if analysis.axes_along(squeeze) == [1] else pooled


def _normalization(analysis: Analysis, graph: gs.Graph, pooled: gs.Tensor) -> gs.Tensor | None:
    """The tensor pooled / max(norm(pooled), tiny) where that is all that becomes of `pooled`."""
    divisions = [node for node in pooled.outputs if is_standard(node, "Div") and node.inputs[0] is pooled]
    if len(divisions) != 1 or is_output(graph, pooled):
        return None
    tensor, clipped = divisions[0].inputs[1], False
    while True:
        node = producer(tensor)
        if node is None:
            return None
        if is_standard(node, "Expand", "Identity"):
            tensor = node.inputs[0]
        elif is_standard(node, "Clip", "Max") and _at_most(analysis, node, _MAX_NORM_EPSILON):
            tensor, clipped = node.inputs[0], True
        else:
            break
    if not clipped or not _is_norm(analysis, node, pooled):
        return None
    others = [reader for reader in pooled.outputs if reader is not divisions[0] and not _leads_to(reader, tensor)]
    return None if others else divisions[0].outputs[0]


def _is_norm(analysis: Analysis, node: gs.Node, pooled: gs.Tensor) -> bool:
    """Whether a node is a ReduceL2 of `pooled` over the last axis, and keeps that axis."""
    if not is_standard(node, "ReduceL2") or node.inputs[0] is not pooled or not int(node.attrs.get("keepdims", 1)):
        return False
    rank = analysis[pooled].rank
    return rank is not None and analysis.axes_along(node) == [rank - 1]


def _leads_to(node: gs.Node, tensor: gs.Tensor) -> bool:
    return any(output is tensor for output in node.outputs)
