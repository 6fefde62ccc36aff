# SPDX-License-Identifier: Apache-2.0
"""Norms of the heads of Q and K, and their rotation, in the epilogue of the GEMM that makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    disconnect,
    find_padfree,
    is_output,
    node_name,
    padfree_inputs,
    set_padfree_inputs,
    used_once,
)
from ...match import NoMatch
from ...operators import NORMED_HEAD, WIDE_HEAD
from ..base import PassResult, replace_each
from .columns import ColumnPart, Columns
from .rotations import gemm_of, inputs_in_pairs, order_of_pairs, take_result

NAME = "head norms"


@dataclass(frozen=True)
class _HeadNorms:
    """A PadfreeQkNormRotary `node` of what `gemm` makes, whose result `attention` reads."""

    node: gs.Node
    gemm: gs.Node
    attention: gs.Node

    @property
    def heads(self) -> tuple[int, int]:
        """The numbers of heads of Q and of K."""
        return int(self.node.attrs["num_heads"]), int(self.node.attrs["num_kv_heads"])

    @property
    def head_size(self) -> int:
        return int(self.node.attrs["head_size"])


def head_norms(graph: gs.Graph, precision: str) -> PassResult:
    """Removes every PadfreeQkNormRotary of heads of 128 or 256 between a PadfreeLinear and a PadfreeAttention.

    The GEMM norms and rotates its first columns, which come in pairs as for the rotations' pass, and attention reads
    all of Q, K and V from its result. `precision` is the graph's.
    """
    editor = Editor(graph)
    columns = Columns(editor, precision)

    def replace(node: gs.Node) -> bool:
        _replace(editor, columns, _match(graph, node))
        return True

    return replace_each(NAME, find_padfree(graph, "PadfreeQkNormRotary"), replace)


def _match(graph: gs.Graph, node: gs.Node) -> _HeadNorms:
    """Raises NoMatch where the GEMM cannot norm the heads."""
    name, inputs, (qk,) = node_name(node), padfree_inputs(node), node.outputs
    qkv = inputs["qkv"]
    size, sizes = node.attrs["head_size"], (NORMED_HEAD, WIDE_HEAD)
    if size not in sizes:
        raise NoMatch(f"'{name}' norms heads of {size} columns; GEMMs norm those of {' or '.join(map(str, sizes))}")
    gemm = gemm_of(qkv, f"'{name}' norms")
    attention = qk.outputs[0] if used_once(graph, qk) else None
    readers = [reader for reader in qkv.outputs if reader is not node]
    if attention is None or readers != [attention] or is_output(graph, qkv):
        raise NoMatch(f"'{name}' norms what more than one attention reads; other readers would see permuted columns")
    if not all(isinstance(inputs[key], gs.Constant) for key in ("q_gamma", "k_gamma", "frequencies")):
        raise NoMatch(f"'{name}' norms by scales, or rotates by frequencies, that are not constant")
    return _HeadNorms(node, gemm, attention)


def _replace(editor: Editor, columns: Columns, match: _HeadNorms) -> None:
    gemm, node = match.gemm, padfree_inputs(match.node)
    count, size = sum(match.heads), match.head_size
    head = order_of_pairs(size, str(match.node.attrs["pairing"]))
    inputs = inputs_in_pairs(columns, gemm, count, head)
    end = match.heads[0] * size
    every = np.arange(count * size)
    inputs["head_scale"] = columns.put(
        [
            ColumnPart(node[f"{letter}_gamma"], np.tile(head, heads), indices)
            for letter, heads, indices in zip("qk", match.heads, (every[:end], every[end:]), strict=True)
        ],
        "head_scale",
    )
    inputs["positions"] = node["positions"]
    inputs["frequencies"] = columns.of_heads(node["frequencies"], count)
    output = take_result(editor, gemm, node["qkv"])
    numbers = {"rotary_features": every.size, "residual_epsilon": match.node.attrs["epsilon"], "norms_heads": 1}
    if size == WIDE_HEAD:
        numbers["wide_heads"] = 1
    set_padfree_inputs(gemm, inputs, **numbers)
    rest = {name: tensor for name, tensor in padfree_inputs(match.attention).items() if name not in ("qk", "qkv")}
    disconnect(match.node)
    match.attention.attrs["qkv_layout"] = "3HD"
    set_padfree_inputs(match.attention, {**rest, "qkv": output})
