# SPDX-License-Identifier: Apache-2.0
"""What all passes share: their result, and the tensors that lead from padded to packed and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, find_padfree, is_padfree, made_by, node_name, producer, token_axis
from ..analysis.symbolic import Facts, permutation
from ..match import Miss, NoMatch

# Integers that the padfree operators do not take.
_THROUGH_INT32 = frozenset({"bool", "int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64"})


@dataclass(frozen=True)
class PassResult:
    """What a pass did to its graph.

    `excluded` are ids that an input must not hold among the kept tokens: the model takes them for padding.
    `right_padded`: the reasons why the original is only right where masks are right-padded; none where it always is.
    `left_padded`: the same for masks that must be left-padded.
    `contiguous`: the reasons why the original and the result only agree where no padding lies between a row's tokens.
    """

    name: str
    replaced: int
    missed: tuple[Miss, ...] = ()
    excluded: tuple[tuple[str, tuple[int, ...]], ...] = ()
    right_padded: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()
    left_padded: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What the metadata says of the pass."""
        return {"name": self.name, "replaced": self.replaced, "missed": [asdict(miss) for miss in self.missed]}


def replace_each(name: str, nodes: Iterable[gs.Node], replace: Callable[[gs.Node], int]) -> PassResult:
    """What a pass does that looks at one node after the other: `replace` says how many it replaced, or whether.

    Its NoMatch says why a node stays that is nearly one of those.
    """
    misses = list[Miss]()

    def count_replaced(node: gs.Node) -> int:
        try:
            return replace(node)
        except NoMatch as reason:
            misses.append(Miss(node_name(node), str(reason)))
            return 0

    replaced_count = sum(count_replaced(node) for node in list(nodes))
    return PassResult(name, replaced_count, tuple(misses))


@dataclass(frozen=True)
class Boundary:
    """The tensors that lead from padded to packed and back."""

    mask: gs.Tensor  # int32 [B,S]
    token_index: gs.Tensor  # int32 [T]
    seq_lens: gs.Tensor  # int32 [B]
    cu_seqlens: gs.Tensor  # int32 [B+1]


def boundary_of(graph: gs.Graph) -> Boundary:
    """The boundary of a graph that `add_boundary` has been applied to."""
    index = find_padfree(graph, "PadfreeIndex")[0]
    schedule = find_padfree(graph, "PadfreeSchedule")[0]
    return Boundary(index.inputs[0], index.outputs[0], index.outputs[1], schedule.outputs[0])


def add_boundary(editor: Editor, mask: gs.Tensor) -> Boundary:
    """Derives the token index, the lengths and their prefix sum from a mask int32 [B,S]."""
    int32 = np.dtype(np.int32)
    token_index = editor.variable("padfree_token_index", int32)
    seq_lens = editor.variable("padfree_seq_lens", int32)
    num_tokens = editor.variable("padfree_num_tokens", int32)
    cu_seqlens = editor.variable("padfree_cu_seqlens", int32)
    editor.padfree("PadfreeIndex", [mask], [token_index, seq_lens, num_tokens])
    add_schedule(editor, [seq_lens, token_index], [cu_seqlens])
    return Boundary(mask, token_index, seq_lens, cu_seqlens)


def add_schedule(
    editor: Editor, inputs: list[gs.Tensor], outputs: list[gs.Tensor], positions: gs.Tensor | None = None
) -> None:
    """Adds a PadfreeSchedule of lengths and tokens, with tokens' slots if `inputs` has an extent, and without tasks.

    It makes `positions` only where something reads them.
    """
    is_read = positions is not None and bool(positions.outputs)
    schedule_outputs = [*outputs, positions] if is_read else outputs
    flags = {"has_extent": len(inputs) - 2, "has_positions": int(is_read)}
    editor.padfree("PadfreeSchedule", inputs, schedule_outputs, num_heads=1, **flags)


def pack(editor: Editor, tensor: gs.Tensor, boundary: Boundary, dtype: str | None) -> gs.Tensor:
    """The tensor [B,S,...] as [T,...]: what it was unpacked from, or a PadfreePack of it, one for all readers.

    Types that PadfreePack does not take, such as int64, bool and uint8, go through int32 and come back.
    """
    source = producer(tensor)
    if source is not None and is_padfree(source, "PadfreeUnpack"):
        return source.inputs[0]
    if source is not None and made_by(tensor, "Cast") is not None and dtype in _THROUGH_INT32:
        origin = producer(source.inputs[0])
        if origin is not None and is_padfree(origin, "PadfreeUnpack") and origin.inputs[0].dtype == np.int32:
            return editor.cast(origin.inputs[0], dtype, "padfree_tokens")
    if dtype in _THROUGH_INT32:
        return editor.cast(pack_int32(editor, tensor, boundary, dtype), dtype, "padfree_tokens")
    for reader in tensor.outputs:
        if is_padfree(reader, "PadfreePack"):
            return reader.outputs[0]
    packed = editor.variable(f"{tensor.name}_packed", tensor.dtype if dtype is None else np.dtype(dtype))
    editor.padfree("PadfreePack", [tensor, boundary.token_index], [packed])
    return packed


def to_front(facts: Facts) -> list[int] | None:
    """The permutation that makes [B,S,...] of [B,...,S,...]; None where none is needed, or the shape is not known."""
    sequence, rank = token_axis(facts.shape), facts.rank or 0
    if sequence in (None, 1):
        return None
    return [0, sequence, *(axis for axis in range(1, rank) if axis != sequence)]


def pack_tokens(editor: Editor, tensor: gs.Tensor, boundary: Boundary, facts: Facts) -> gs.Tensor:
    """The tensor [B,...,S,...] as [T,...]."""
    order = to_front(facts)
    if order is None:
        return pack(editor, tensor, boundary, facts.dtype)
    back = [int(axis) for axis in np.argsort(order)]
    source = made_by(tensor, "Transpose")
    if source is not None and permutation(source, len(back)) == back:
        return pack(editor, source.inputs[0], boundary, facts.dtype)
    tokens_first = editor.op("Transpose", tensor, stem=f"{tensor.name}_tokens", perm=order)
    return pack(editor, tokens_first, boundary, facts.dtype)


def unpack_tokens(editor: Editor, tensor: gs.Tensor, boundary: Boundary, facts: Facts, output: gs.Tensor) -> None:
    """Writes the tensor [T,...] to `output` [B,...,S,...], zeros at masked slots."""
    order = to_front(facts)
    if order is None:
        unpack(editor, tensor, boundary, facts.dtype, output)
        return
    back = [int(axis) for axis in np.argsort(order)]
    padded = unpack(editor, tensor, boundary, facts.dtype)
    editor.op("Transpose", padded, perm=back, output=output)


def pool_tokens(
    editor: Editor, packed: gs.Tensor, boundary: Boundary, output: gs.Tensor, mode: str, *, normalize: bool = False
) -> None:
    """Writes one row per sequence [B,E] of packed tokens [T,E] to a tensor."""
    editor.padfree("PadfreePool", [packed, boundary.cu_seqlens], [output], mode=mode, normalize=int(normalize))


def pack_int32(editor: Editor, tensor: gs.Tensor, boundary: Boundary, dtype: str | None) -> gs.Tensor:
    """An integer tensor [B,S] as int32 [T]."""
    if dtype == "int32":
        return pack(editor, tensor, boundary, "int32")
    for reader in tensor.outputs:
        live = bool(reader.outputs)  # nodes whose output something else makes now are still listed
        cast = reader if live and reader.op == "Cast" and reader.outputs[0].dtype == np.int32 else None
        if cast is not None and any(is_padfree(node, "PadfreePack") for node in cast.outputs[0].outputs):
            return pack(editor, cast.outputs[0], boundary, "int32")
    return pack(editor, editor.cast(tensor, np.int32, f"{tensor.name}_int32"), boundary, "int32")


def unpack(
    editor: Editor, tensor: gs.Tensor, boundary: Boundary, dtype: str | None, output: gs.Tensor | None = None
) -> gs.Tensor:
    """The tensor [T,...] as [B,S,...], zeros at masked slots; written to `output` where that is given."""
    if dtype in _THROUGH_INT32:
        narrow = unpack(editor, editor.cast(tensor, np.int32, f"{tensor.name}_int32"), boundary, "int32")
        return editor.cast(narrow, dtype, f"{tensor.name}_padded", output)
    padded = output if output is not None else editor.variable(f"{tensor.name}_padded", tensor.dtype)
    if padded.dtype is None and dtype is not None:
        padded.dtype = np.dtype(dtype)
    editor.padfree("PadfreeUnpack", [tensor, boundary.token_index, boundary.seq_lens, boundary.mask], [padded])
    return padded
