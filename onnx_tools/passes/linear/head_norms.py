# SPDX-License-Identifier: Apache-2.0
"""Norms of the heads of Q and K, and their rotation, in the epilogue of the GEMM that makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    find_padfree,
    is_output,
    is_padfree,
    node_name,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ...match import NoMatch
from ...operators import NORMED_HEAD
from ..base import PassResult, replace_each
from .columns import ColumnPart, Columns
from .rotations import order_of_pairs

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


def head_norms(graph: gs.Graph, precision: str) -> PassResult:
    """Removes every PadfreeQkNormRotary of heads of 128 between a PadfreeLinear and a PadfreeAttention.

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
    qkv, gemm = inputs["qkv"], producer(inputs["qkv"])
    if node.attrs["head_size"] != NORMED_HEAD:
        raise NoMatch(f"'{name}' norms heads of {node.attrs['head_size']} columns; GEMMs norm those of {NORMED_HEAD}")
    if gemm is None or not is_padfree(gemm, "PadfreeLinear"):
        raise NoMatch(f"'{name}' norms '{qkv.name}', which no PadfreeLinear makes")
    if gemm.attrs["activation"] != "none" or gemm.attrs["has_residual"] or gemm.attrs["gated"]:
        raise NoMatch(f"'{name}' norms what '{node_name(gemm)}' makes by an activation, a gate or a residual")
    attention = qk.outputs[0] if used_once(graph, qk) else None
    readers = [reader for reader in qkv.outputs if reader is not node]
    if attention is None or readers != [attention] or is_output(graph, qkv):
        raise NoMatch(f"'{name}' norms what more than one attention reads; other readers would see permuted columns")
    if not all(isinstance(inputs[key], gs.Constant) for key in ("q_gamma", "k_gamma", "frequencies")):
        raise NoMatch(f"'{name}' norms by scales, or rotates by frequencies, that are not constant")
    return _HeadNorms(node, gemm, attention)


def _replace(editor: Editor, columns: Columns, match: _HeadNorms) -> None:
    gemm, node = match.gemm, padfree_inputs(match.node)
    inputs, count = padfree_inputs(gemm), sum(match.heads)
    head = order_of_pairs(NORMED_HEAD, str(match.node.attrs["pairing"]))
    order = np.arange(int(inputs["weight"].shape[-1]))
    order[: count * NORMED_HEAD] = (np.arange(count)[:, np.newaxis] * NORMED_HEAD + head).reshape(-1)
    for name in ("weight", "bias"):
        if name in inputs:
            constant = inputs[name]
            inputs[name] = columns.put([ColumnPart(constant, order, np.arange(order.size))], f"{constant.name}_pairs")
    end = match.heads[0] * NORMED_HEAD
    every = np.arange(count * NORMED_HEAD)
    inputs["head_scale"] = columns.put(
        [
            ColumnPart(node[f"{letter}_gamma"], np.tile(head, heads), indices)
            for letter, heads, indices in zip("qk", match.heads, (every[:end], every[end:]), strict=True)
        ],
        "head_scale",
    )
    inputs["positions"] = node["positions"]
    inputs["frequencies"] = columns.of_heads(node["frequencies"], count)
    output = editor.take_over(node["qkv"])
    output.name = editor.fresh(f"{output.name}_pairs")
    gemm.outputs = [output]
    numbers = {"rotary_features": every.size, "residual_epsilon": match.node.attrs["epsilon"], "norms_heads": 1}
    set_padfree_inputs(gemm, inputs, **numbers)
    rest = {name: tensor for name, tensor in padfree_inputs(match.attention).items() if name not in ("qk", "qkv")}
    match.node.inputs.clear()
    match.node.outputs.clear()
    match.attention.attrs["qkv_layout"] = "3HD"
    set_padfree_inputs(match.attention, {**rest, "qkv": output})
