# SPDX-License-Identifier: Apache-2.0
"""Norms of the heads of Q and K before a rotation: one GEMM for Q, K and V, and one kernel for norms and rotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import (
    RESHAPES,
    Editor,
    T,
    find_padfree,
    is_padfree,
    made_by,
    node_name,
    once,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ..analysis.symbolic import Analysis
from ..files import join_columns, zeros_for
from ..match import NoMatch
from ..match.chains import added_bias
from .base import PassResult, replace_each

NAME = "norms of Q and K"
_PLAIN = ("has_bias", "has_residual", "has_beta", "has_sum")


@dataclass(frozen=True)
class _Heads:
    """Heads of Q or K that a PadfreeRotary rotates behind an RMS norm of each; `source` is [T, heads * size]."""

    rotary: gs.Node
    norm: gs.Node
    source: gs.Tensor

    @property
    def gamma(self) -> gs.Tensor:
        return padfree_inputs(self.norm)["gamma"]

    @property
    def rotation(self) -> tuple[str, str, bytes, float]:
        """What must be the same for Q and K."""
        _, positions, frequencies = self.rotary.inputs
        return (
            positions.name,
            str(self.rotary.attrs["pairing"]),
            frequencies.values.tobytes(),
            self.norm.attrs["epsilon"],
        )


@dataclass(frozen=True)
class _Projection:
    """The GEMM of Q, K or V, and its bias."""

    matmul: gs.Node
    bias: gs.Constant | None


def qk_norms(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Puts PadfreeQkNormRotary before every attention whose Q and K are normalised per head and then rotated.

    One GEMM makes Q, K and V then. Attention reads V from its result, so that only Q and K are written again.
    """
    return _QkNorms(graph, analysis).run()


class _QkNorms:
    """The attentions of one graph with norms of Q and K."""

    def __init__(self, graph: gs.Graph, analysis: Analysis) -> None:
        self._graph = graph
        self._analysis = analysis
        self._editor = Editor(graph)
        self._constants: dict[tuple[str, ...], gs.Constant] = {}  # by the names of the constants that they join

    def run(self) -> PassResult:
        """Replaces what fits; a near miss says why it stays."""
        return replace_each(NAME, find_padfree(self._graph, "PadfreeAttention"), self._visit)

    def _visit(self, node: gs.Node) -> bool:
        inputs = padfree_inputs(node)
        if node.attrs["qkv_layout"] != "separate" or node.attrs["has_qkv_bias"]:
            return False
        q, k = (self._heads(inputs[name]) for name in ("q", "k"))
        if q is None or k is None:
            return False
        self._replace(node, q, k, self._projections(node, q, k))
        return True

    def _heads(self, tensor: gs.Tensor) -> _Heads | None:
        """The norm and the rotation that make Q or K; None where something else does."""
        rotary = producer(tensor)
        if rotary is None or not is_padfree(rotary, "PadfreeRotary"):
            return None
        merge = made_by(rotary.inputs[0], *RESHAPES)
        norm = None if merge is None else producer(merge.inputs[0])
        split = None if norm is None or not is_padfree(norm, "PadfreeLayerNorm") else made_by(norm.inputs[0], *RESHAPES)
        if merge is None or norm is None or split is None:
            return None
        heads, size = int(rotary.attrs["num_heads"]), int(rotary.attrs["head_size"])
        plain = norm.attrs["rms"] and norm.attrs["results"] == "act" and not any(norm.attrs[name] for name in _PLAIN)
        split_shape = self._analysis[split.outputs[0]].shape or ()
        sizes = [axis.constant() or 0 for axis in split_shape[1:]]
        fits = split_shape[:1] == (T,) and sizes[-1:] == [size] and np.prod(sizes) == heads * size
        if not plain or not fits or not self._width(split.inputs[0]) == self._width(merge.outputs[0]) == heads * size:
            return None
        chain = (tensor, merge.outputs[0], norm.outputs[0], split.outputs[0], split.inputs[0])
        constants = isinstance(padfree_inputs(norm)["gamma"], gs.Constant) and isinstance(rotary.inputs[2], gs.Constant)
        if not constants or not all(used_once(self._graph, item) for item in chain):
            return None
        return _Heads(rotary, norm, split.inputs[0])

    def _width(self, tensor: gs.Tensor) -> int | None:
        """N of a tensor [T,N]."""
        shape = self._analysis[tensor].shape
        return shape[1].constant() if shape is not None and len(shape) == 2 and shape[0] == T else None

    def _projections(self, attention: gs.Node, q: _Heads, k: _Heads) -> list[_Projection]:
        """The GEMMs of Q, K and V. Raises NoMatch where they cannot be one, or where Q and K differ."""
        name, heads = node_name(attention), [int(attention.attrs[key]) for key in ("num_heads", "num_kv_heads")]
        if [int(item.rotary.attrs["num_heads"]) for item in (q, k)] != heads:
            raise NoMatch(f"'{name}' has other heads than those that are normed before it")
        if q.rotation != k.rotation:
            raise NoMatch(f"'{name}' reads a Q and a K with different rotations, or whose norms differ in epsilon")
        tensors = (q.source, k.source, padfree_inputs(attention)["v"])
        candidates = [self._projection(tensor) for tensor in tensors]
        projections = [item for item in candidates if item is not None]
        if len(projections) != len(tensors):
            raise NoMatch(f"'{name}' norms Q and K by head, and Q, K or V is not the result of one GEMM by a constant")
        first, *others = (item.matmul for item in projections)
        if any(item.inputs[0] is not first.inputs[0] for item in others):
            raise NoMatch(f"'{name}' reads Q, K and V that are computed from different rows")
        if len({str(item.matmul.inputs[1].dtype) for item in projections}) != 1:
            raise NoMatch(f"'{name}' reads Q, K and V whose weights differ in type")
        return projections

    def _projection(self, tensor: gs.Tensor) -> _Projection | None:
        """The GEMM that makes a tensor, with a bias or none; None where something else does."""
        matmul = made_by(tensor, "MatMul")
        add = made_by(tensor, "Add")
        if add is not None:
            makers = [made_by(item, "MatMul") for item in add.inputs]
            matmul = next((item for item in makers if item is not None), None)
        weight = None if matmul is None else matmul.inputs[1]
        if matmul is None or not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
            return None
        step = added_bias(self._graph, self._analysis, matmul.outputs[0])
        if step.output is not tensor or not used_once(self._graph, tensor):
            return None
        return _Projection(matmul, step.addend)

    def _replace(self, attention: gs.Node, q: _Heads, k: _Heads, projections: Sequence[_Projection]) -> None:
        x = projections[0].matmul.inputs[0]
        weight = self._join([item.matmul.inputs[1] for item in projections], "qkv_weight")
        qkv = self._editor.op("MatMul", x, weight, stem="qkv")
        if any(item.bias is not None for item in projections):
            bias = self._join([item.bias or zeros_for(item.matmul.inputs[1]) for item in projections], "qkv_bias")
            qkv = self._editor.op("Add", qkv, bias, stem="qkv_with_bias")
        qk = self._editor.variable("qk", weight.dtype)
        _, positions, frequencies = q.rotary.inputs
        self._editor.padfree(
            "PadfreeQkNormRotary",
            [qkv, q.gamma, k.gamma, positions, frequencies],
            [qk],
            epsilon=q.norm.attrs["epsilon"],
            **{key: attention.attrs[key] for key in ("num_heads", "num_kv_heads", "head_size")},
            pairing=q.rotary.attrs["pairing"],
        )
        inputs = {name: tensor for name, tensor in padfree_inputs(attention).items() if name not in ("q", "k", "v")}
        attention.attrs["qkv_layout"] = "2HD"
        set_padfree_inputs(attention, {**inputs, "qk": qk, "qkv": qkv})

    def _join(self, constants: Sequence[gs.Constant], stem: str) -> gs.Constant:
        """Constants side by side; layers that share their constants share the result."""
        key = tuple(item.name for item in constants)
        return once(self._constants, key, lambda: join_columns(self._editor.fresh(stem), constants))
