# SPDX-License-Identifier: Apache-2.0
"""The packed interface: token inputs [T] and sequence lengths instead of [B,S] inputs and a mask."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    disconnect,
    find_padfree,
    is_padfree,
    is_shared_input,
    is_standard,
    is_token_input,
    is_token_shape,
    made_by,
    nodes_before,
    producer,
    remove_nodes,
    tidy,
)
from ...analysis.symbolic import Analysis
from ...errors import RewriteError
from ...match.values import mask_of
from ..base import Boundary, PassResult, add_schedule, boundary_of, unpack
from ..positions.positions import offset_of
from .outputs import pack_outputs

NAME = "interface"
SEQ_LENS, MAX_SEQLEN = "seq_lens", "max_seqlen"
_INT32 = np.dtype(np.int32)


def packed_interface(
    graph: gs.Graph, analysis: Analysis, fillers: Mapping[str, int], unread_names: Collection[str]
) -> PassResult:
    """Replaces the padded inputs and the mask by packed inputs and lengths, in place.

    Nodes that stay padded read the new inputs unpacked, right-padded to the longest sequence.

    Args:
        graph: has the padded interface, and a boundary.
        analysis: the graph's.
        fillers: by input, the value that its padded slots must hold; 0 for inputs that are not in it.
        unread_names: inputs to remove.

    Raises:
        RewriteError: there is no token input, a name is taken, or it is unknown which part of an output belongs to a
            sequence.
    """
    boundary = boundary_of(graph)
    pack_outputs(Editor(graph), analysis, boundary)
    tidy(graph)
    mask_rule = mask_of(analysis[boundary.mask])
    mask = next((tensor for tensor in graph.inputs if tensor.name == mask_rule.source), None)
    if not mask_rule.plain and mask is not None and _says_more(mask, boundary):
        mask = None  # it also holds values of tokens
    unused_inputs = [tensor for tensor in graph.inputs if tensor is not mask and tensor.name in unread_names]
    inputs = [
        tensor
        for tensor in graph.inputs
        if tensor is not mask and tensor not in unused_inputs and is_token_input(tensor)
    ]
    inputs.sort(key=lambda tensor: len(tensor.shape))  # the first has one number per token
    names = [tensor.name for tensor in inputs]
    others = [tensor for tensor in graph.inputs if tensor not in [*inputs, *unused_inputs] and tensor is not mask]
    _check_names([*names, *(tensor.name for tensor in others)], graph)
    editor = Editor(graph)
    for tensor in graph.tensors().values():
        if tensor.name in (SEQ_LENS, MAX_SEQLEN) or tensor in inputs or tensor is mask or tensor in unused_inputs:
            tensor.name = editor.fresh(f"{tensor.name}_padded")
    seq_lens = gs.Variable(SEQ_LENS, _INT32, ["B"])
    tokens = [
        gs.Variable(name, _packed_type(tensor), ["T", *tensor.shape[2:]])
        for name, tensor in zip(names, inputs, strict=True)
    ]
    if not tokens:
        raise RewriteError(
            f"the model reads nothing but its mask '{mask_rule.source}'; the packed interface needs a token input such "
            "as input_ids; choose the padded interface"
        )
    for padded, packed in zip(inputs, tokens, strict=True):
        _feed(padded, packed)
    row = tokens[0] if len(inputs[0].shape) == 2 else _fill(editor, tokens[0], 0)  # [T]; its values are never read
    positions = _count_positions(editor, analysis, seq_lens, row)
    graph.inputs = [*tokens, seq_lens, *(_row_input(editor, tensor) for tensor in others)]
    sized_inputs = [
        tensor for tensor in (*inputs, *unused_inputs, mask) if tensor is not None and is_token_input(tensor)
    ]
    _schedule(graph, editor, seq_lens, row, boundary, sized_inputs, positions)
    tidy(graph)
    filler = mask_rule.masked[0] if mask_rule.masked else 0
    for padded, packed in zip(inputs, tokens, strict=True):
        own = packed.name == mask_rule.source
        _restore(editor, boundary_of_packed(graph), padded, packed, filler if own else fillers.get(packed.name, 0))
    if mask is not None and mask.outputs:
        _restore(editor, boundary_of_packed(graph), mask, _fill(editor, row, mask_rule.kept_values[0]), filler)
    _join(editor)
    tidy(graph)
    _drop_extent(graph, editor)
    tidy(graph)
    return PassResult(NAME, len(tokens) + 1)


def _row_input(editor: Editor, tensor: gs.Tensor) -> gs.Tensor:
    """The new input with one row per sequence, [B] or [B,N]; integers become int32.

    If all sequences share the old input, only the first row of the new one is read.
    """
    dtype, is_shared = np.dtype(tensor.dtype), is_shared_input(tensor)
    if _packed_type(tensor) == dtype and not is_shared:
        return tensor
    result = gs.Variable(tensor.name, _packed_type(tensor), [*["B"] * is_shared, *tensor.shape])
    tensor.name = editor.fresh(f"{tensor.name}_given")
    if not tensor.outputs:
        return result
    value = result
    if is_shared:
        output = tensor if _packed_type(tensor) == dtype else None
        value = editor.op("Gather", result, 0, output=output, stem=tensor.name, axis=0)
    if value is not tensor:
        editor.cast(value, dtype, output=tensor)
    return result


def _packed_type(tensor: gs.Tensor) -> np.dtype[np.generic]:
    """The type of a packed input [T,...]: integers become int32."""
    dtype = np.dtype(tensor.dtype)
    return dtype if np.issubdtype(dtype, np.floating) else _INT32


def _check_names(inputs: list[str], graph: gs.Graph) -> None:
    """Raises RewriteError if an input or output has the name of an input that the interface adds."""
    outputs = [tensor.name for tensor in graph.outputs]
    for name, kind in [*((name, "input") for name in inputs), *((name, "output") for name in outputs)]:
        if name in (SEQ_LENS, MAX_SEQLEN):
            raise RewriteError(
                f"the model's {kind} '{name}' has the name of an input that the packed interface adds ({SEQ_LENS}, "
                f"{MAX_SEQLEN}); give it another name when exporting, or choose the padded interface"
            )


def _feed(padded: gs.Tensor, packed: gs.Tensor) -> None:
    """Makes everything that reads the packed old input read the new one."""
    for holder in [padded, *(node.outputs[0] for node in padded.outputs if is_standard(node, "Cast"))]:
        for node in list(holder.outputs):
            if is_padfree(node, "PadfreePack"):
                result = node.outputs[0]
                for reader in list(result.outputs):
                    for position, item in enumerate(reader.inputs):
                        if item is result:
                            reader.inputs[position] = packed
                node.inputs.clear()


def _schedule(
    graph: gs.Graph,
    editor: Editor,
    seq_lens: gs.Tensor,
    tokens: gs.Tensor,
    boundary: Boundary,
    padded: list[gs.Tensor],
    positions: gs.Tensor,
) -> None:
    """Takes lengths from the input, slots and positions from the schedule, and shapes from lengths and extent."""
    extent = gs.Variable(MAX_SEQLEN, _INT32, ["S"])
    graph.inputs = [*graph.inputs, extent]
    _full_shapes(editor, seq_lens, extent, padded)
    before = _boundary_nodes(graph, boundary)
    token_index = editor.variable("padfree_token_index", _INT32)
    editor.redirect(boundary.token_index, token_index)
    editor.redirect(boundary.seq_lens, seq_lens)
    for node in list(boundary.mask.outputs):
        if is_padfree(node, "PadfreeUnpack"):
            node.inputs[3] = extent
    remove_nodes(graph, before)
    add_schedule(editor, [seq_lens, tokens, extent], [boundary.cu_seqlens, token_index], positions)


def _boundary_nodes(graph: gs.Graph, boundary: Boundary) -> list[gs.Node]:
    """The nodes that made the boundary of the padded interface."""
    return [
        node
        for node in graph.nodes
        if is_padfree(node, "PadfreeIndex", "PadfreeSchedule")
        and any(tensor is boundary.mask or tensor is boundary.seq_lens for tensor in node.inputs)
    ]


def _count_positions(editor: Editor, analysis: Analysis, seq_lens: gs.Tensor, tokens: gs.Tensor) -> gs.Tensor:
    """Computes from the lengths what was packed from slot numbers (a row) or sequence numbers (a column).

    Returns the tensor of every token's position in its sequence; the schedule makes it if something reads it.
    """
    positions = editor.variable("padfree_positions", _INT32)
    packs = [
        (node, [offset_of(analysis[node.inputs[0]], axis) for axis in (1, 0)])
        for node in editor.graph.nodes
        if is_padfree(node, "PadfreePack") and node.inputs and is_token_shape(analysis[node.inputs[0]].shape)
    ]
    for node, offsets in packs:
        offset = next((item for item in offsets if item is not None), None)
        if offset is None:
            continue
        result = node.outputs[0]
        disconnect(node)
        indices = positions if offsets[0] is not None else _sequences(editor, seq_lens, tokens)
        if offset:
            shift = editor.scalar(offset, np.int32)
            editor.op("Add", indices, shift, stem="positions", output=result)
        else:
            editor.redirect(result, indices)
    return positions


def _sequences(editor: Editor, seq_lens: gs.Tensor, tokens: gs.Tensor) -> gs.Tensor:
    """int32 [T]: the index of every token's sequence, 0 for filler; slot / T, rounded down, where rows have T slots."""
    cu_seqlens, slots = editor.variable("cu_seqlens", _INT32), editor.variable("slots", _INT32)
    add_schedule(editor, [seq_lens, tokens, tokens], [cu_seqlens, slots])
    size = editor.op("Shape", tokens, stem="token_count")
    at_least_zero = editor.op("Max", slots, editor.scalar(0, np.int32), stem="slots")  # filler has no slot
    return editor.op("Div", at_least_zero, editor.cast(size, _INT32, "row_length"), stem="sequences")


def boundary_of_packed(graph: gs.Graph) -> Boundary:
    """The boundary in a graph of the packed interface; `mask` is the extent."""
    schedule = _schedule_of_slots(graph)
    return Boundary(schedule.inputs[2], schedule.outputs[1], schedule.inputs[0], schedule.outputs[0])


def _full_shapes(editor: Editor, seq_lens: gs.Tensor, extent: gs.Tensor, padded: list[gs.Tensor]) -> None:
    """Computes the shapes of the old inputs: B from the lengths, S from the extent."""
    batch: gs.Tensor | None = None
    for tensor in padded:
        plain = len(tensor.shape) == 2  # the shapes of other inputs are made from this one's
        for node in [item for item in tensor.outputs if plain and is_standard(item, "Shape") and not item.attrs]:
            shape = node.outputs[0]
            batch = batch if batch is not None else editor.op("Shape", seq_lens, stem="batch_shape")
            for reader in list(shape.outputs):
                if _takes_first(reader):
                    reader.inputs[0] = batch
            if shape.outputs:
                length = editor.op("Shape", extent, stem="length_shape")
                whole = editor.op("Concat", batch, length, stem="shape", axis=0)
                editor.redirect(shape, whole)


def _takes_first(node: gs.Node) -> bool:
    index = node.inputs[1] if is_standard(node, "Gather") else None
    return isinstance(index, gs.Constant) and bool(np.all(index.values == 0))


def _says_more(mask: gs.Tensor, boundary: Boundary) -> bool:
    """Whether the mask input is also read for more than which slots it keeps."""
    chain = {id(node) for node in nodes_before([boundary.mask], lambda _: True)}
    return any(id(node) not in chain and not is_standard(node, "Shape") for node in mask.outputs)


def _restore(editor: Editor, boundary: Boundary, padded: gs.Tensor, packed: gs.Tensor, filler: int) -> None:
    """Makes nodes that stay padded read the new input unpacked, with `filler` in masked slots."""
    if not padded.outputs:
        return
    dtype = np.dtype(padded.dtype)
    if not filler and dtype == packed.dtype:
        unpack(editor, packed, boundary, dtype.name, padded)
        return
    if filler:  # unpacking writes zeros
        number = editor.scalar(filler, np.int32)
        above = editor.op("Sub", packed, number, stem="above_filler")
        result = editor.variable("filled", _INT32) if dtype != _INT32 else padded
        narrow = editor.op("Add", unpack(editor, above, boundary, "int32"), number, stem="filled", output=result)
    else:
        narrow = unpack(editor, packed, boundary, "int32")
    if dtype != _INT32:
        editor.cast(narrow, dtype, output=padded)


def _join(editor: Editor) -> None:
    """Keeps tensors packed that would be unpacked and packed again, such as inputs that the original also returns."""
    for node in [item for item in find_padfree(editor.graph, "PadfreePack") if item.inputs]:
        casts, source = list[gs.Node](), node.inputs[0]
        while (view := made_by(source, "Cast", "Identity")) is not None:
            casts += [view] if view.op == "Cast" else []
            source = view.inputs[0]
        maker = producer(source)
        if maker is None or not is_padfree(maker, "PadfreeUnpack"):
            continue
        packed = maker.inputs[0]
        for cast in reversed(casts):
            packed = editor.op("Cast", packed, stem="joined", **cast.attrs)
        editor.redirect(node.outputs[0], packed)


def _fill(editor: Editor, tokens: gs.Tensor, number: int) -> gs.Tensor:
    """int32 [T] filled with one number, as long as a tensor [T,...]."""
    shape = editor.op("Shape", tokens, stem="token_count")
    if len(tokens.shape) > 1:
        shape = editor.op("Gather", shape, [0], stem="token_count", axis=0)
    value = gs.Constant("value", np.full(1, number, np.int32))
    result = editor.op("ConstantOfShape", shape, stem="kept_tokens", value=value)
    result.shape = ["T"]
    return result


def _schedule_of_slots(graph: gs.Graph) -> gs.Node:
    """The schedule that reads the longest sequence's length."""
    schedules = find_padfree(graph, "PadfreeSchedule")
    return next(node for node in schedules if node.inputs[2] in graph.inputs and node.inputs[2] is not node.inputs[1])


def _drop_extent(graph: gs.Graph, editor: Editor) -> None:
    """Removes the input of the padded length if no padded node needs it."""
    schedule = _schedule_of_slots(graph)
    seq_lens, tokens, extent = schedule.inputs
    others = [node for node in extent.outputs if node is not schedule]
    if others or schedule.outputs[1].outputs:
        return
    cu_seqlens, positions = schedule.outputs[0], schedule.outputs[2] if schedule.attrs["has_positions"] else None
    remove_nodes(graph, [schedule])
    if cu_seqlens.outputs or positions is not None:
        add_schedule(editor, [seq_lens, tokens], [cu_seqlens], positions)
    graph.inputs = [tensor for tensor in graph.inputs if tensor is not extent]
