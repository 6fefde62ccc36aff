# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in the epilogue of the GEMMs that make Q and K: columns are permuted, so that pairs meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    disconnect,
    find_padfree,
    is_padfree,
    node_name,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ...match import NoMatch
from ..base import PassResult, replace_each
from .columns import PAIR_BLOCK, ColumnPart, Columns, Indices, indices_of_pairs

NAME = "rotations"


@dataclass(frozen=True)
class _GemmRotation:
    """A PadfreeRotary of what a GEMM makes, which only one attention reads."""

    node: gs.Node
    gemm: gs.Node

    @property
    def heads(self) -> int:
        return int(self.node.attrs["num_heads"])

    @property
    def head_size(self) -> int:
        return int(self.node.attrs["head_size"])


def rotations(graph: gs.Graph, precision: str) -> PassResult:
    """Removes every PadfreeRotary between one PadfreeLinear and one PadfreeAttention; the GEMM rotates its columns.

    Q K^T stays the same when the columns of a head are permuted in Q and K alike. They come in blocks of 16: 8, and
    their 8 partners. Other readers of Q or K than attention would see the columns in that order. `precision` is the
    graph's.
    """
    editor = Editor(graph)
    columns = Columns(editor, precision)

    def replace(attention: gs.Node) -> int:
        matches = _match(graph, attention)
        for rotation in matches:
            _replace(editor, columns, rotation)
        return len(matches)

    return replace_each(NAME, find_padfree(graph, "PadfreeAttention"), replace)


def _match(graph: gs.Graph, attention: gs.Node) -> list[_GemmRotation]:
    """What rotates Q and K of an attention. Raises NoMatch where not all of them can go into GEMMs."""
    inputs = padfree_inputs(attention)
    sources = [inputs[name] for name in ("qkv", "q", "k") if name in inputs]
    rotaries = [_rotary(source) for source in sources]
    if not any(rotaries):
        return []
    name = node_name(attention)
    rotations = [_rotation(graph, node) for node in rotaries if node is not None]
    if len(rotations) != len(sources):
        raise NoMatch(f"'{name}' reads a Q and a K of which only one is rotated")
    heads, of_keys = (int(attention.attrs[key]) for key in ("num_heads", "num_kv_heads"))
    layouts = [heads + of_keys] if len(sources) == 1 else [heads, of_keys]
    size = int(attention.attrs["head_size"])
    if [rotation.heads for rotation in rotations] != layouts or any(
        rotation.head_size != size for rotation in rotations
    ):
        raise NoMatch(f"'{name}' has other heads than those that are rotated before it")
    if len({rotation.node.attrs["pairing"] for rotation in rotations}) > 1:
        raise NoMatch(f"'{name}' reads a Q and a K whose pairs are different columns")
    if attention.attrs["has_qkv_bias"] or attention.attrs["qkv_layout"] == "H3D":
        raise NoMatch(f"'{name}' adds a bias to what is rotated, or has Q, K and V of each head side by side")
    return rotations


def _rotary(tensor: gs.Tensor) -> gs.Node | None:
    node = producer(tensor)
    return node if node is not None and is_padfree(node, "PadfreeRotary") else None


def _rotation(graph: gs.Graph, node: gs.Node) -> _GemmRotation:
    """A PadfreeRotary with its GEMM. Raises NoMatch where the GEMM cannot rotate its columns."""
    name, x = node_name(node), node.inputs[0]
    gemm = gemm_of(x, f"'{name}' rotates")
    if any(not used_once(graph, tensor) for tensor in (x, node.outputs[0])):
        raise NoMatch(f"'{name}' rotates what more than one attention reads; other readers would see permuted columns")
    if int(node.attrs["head_size"]) % PAIR_BLOCK:
        raise NoMatch(
            f"'{name}' rotates heads of {node.attrs['head_size']} columns, which are no multiple of {PAIR_BLOCK}"
        )
    if not isinstance(node.inputs[2], gs.Constant):
        raise NoMatch(f"'{name}' rotates by frequencies that are not constant")
    return _GemmRotation(node, gemm)


def _replace(editor: Editor, columns: Columns, rotation: _GemmRotation) -> None:
    """Lets the GEMM rotate its columns, which are then permuted."""
    gemm, (_, positions, frequencies) = rotation.gemm, rotation.node.inputs
    head = order_of_pairs(rotation.head_size, str(rotation.node.attrs["pairing"]))
    inputs = inputs_in_pairs(columns, gemm, rotation.heads, head)
    inputs["positions"] = positions
    inputs["frequencies"] = columns.of_heads(frequencies, rotation.heads)
    take_result(editor, gemm, rotation.node.outputs[0])
    disconnect(rotation.node)
    set_padfree_inputs(gemm, inputs, rotary_features=rotation.heads * rotation.head_size)


def gemm_of(tensor: gs.Tensor, use: str) -> gs.Node:
    """The PadfreeLinear that makes a tensor. Raises NoMatch where it has none, or none whose epilogue has room."""
    gemm = producer(tensor)
    if gemm is None or not is_padfree(gemm, "PadfreeLinear"):
        raise NoMatch(f"{use} '{tensor.name}', which no PadfreeLinear makes")
    if gemm.attrs["activation"] != "none" or gemm.attrs["has_residual"] or gemm.attrs["gated"]:
        raise NoMatch(f"{use} what '{node_name(gemm)}' makes by an activation, a gate or a residual")
    return gemm


def inputs_in_pairs(columns: Columns, gemm: gs.Node, heads: int, head: Indices) -> dict[str, gs.Tensor]:
    """A GEMM's inputs, with the columns of its first heads in this order each, the others as they are."""
    inputs = padfree_inputs(gemm)
    rotated = (np.arange(heads)[:, np.newaxis] * head.size + head).reshape(-1)
    every = np.arange(int(inputs["weight"].shape[-1]))
    order = np.concatenate([rotated, every[rotated.size :]])
    for name in [item for item in ("weight", "bias") if item in inputs]:
        inputs[name] = columns.put([ColumnPart(inputs[name], order, every)], f"{inputs[name].name}_pairs")
    return inputs


def take_result(editor: Editor, gemm: gs.Node, output: gs.Tensor) -> gs.Tensor:
    """Makes a tensor the GEMM's only result, under a new name, as its columns have another order."""
    output = editor.take_over(output)
    output.name = editor.fresh(f"{output.name}_pairs")
    gemm.outputs = [output]
    return output


def order_of_pairs(head_size: int, pairing: str) -> Indices:
    """The order of a head's columns: blocks of 8, each before its 8 partners."""
    every, head = np.arange(head_size), np.empty(head_size, np.int64)
    positions = indices_of_pairs(head_size // 2)
    head[positions[0]], head[positions[1]] = every.reshape(2, -1) if pairing == "half" else every.reshape(-1, 2).T
    return head
