# SPDX-License-Identifier: Apache-2.0
"""Poolers that a norm makes beside its rows.

After the last norm, a pooler multiplies the rows of first tokens by its weights. As kernels of its own it begins when
the norm has ended, and takes as long.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import find_padfree, padfree_attributes, remove_nodes

from .readers import is_to_float, only_reader

_MULTIPLE = 8
"""The width of rows that a norm multiplies by a pooler's weights is a multiple of this."""
_POOLER = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
"""Attributes of a Gemm that is x weight^T + bias."""


def merge_poolers(graph: gs.Graph) -> None:
    """Lets a norm compute tanh(y_first weight^T + bias) in float32 where nothing else reads its y_first, in place.

    A norm that adds something to x is left alone.
    """
    for norm in find_padfree(graph, "PadfreeLayerNorm"):
        attributes = padfree_attributes(norm)
        if attributes["has_first"] and not attributes["has_bias"] and not attributes["has_residual"]:
            _merge(graph, norm)


def _merge(graph: gs.Graph, norm: gs.Node) -> None:
    if not _are_constants(norm.inputs[1:-1]):  # all but x and cu_seqlens: the kernel reads them early
        return
    gemm = only_reader(graph, norm.outputs[-1], "Gemm")
    tanh = only_reader(graph, gemm.outputs[0], "Tanh") if gemm is not None else None
    cast = only_reader(graph, tanh.outputs[0], "Cast") if tanh is not None else None
    if gemm is None or tanh is None or cast is None or not _is_pooler(gemm) or not is_to_float(cast):
        return
    weights, result = list(gemm.inputs[1:]), cast.outputs[0]
    remove_nodes(graph, (gemm, tanh, cast))
    norm.inputs = [*norm.inputs, *weights]
    norm.outputs = [*norm.outputs[:-1], result]
    norm.attrs["has_pooler"] = 1


def _is_pooler(gemm: gs.Node) -> bool:
    """Whether a Gemm multiplies, by constants, rows of a width that a norm can multiply."""
    if len(gemm.inputs) != 3 or {**_POOLER, "transB": 0, **gemm.attrs} != _POOLER:
        return False
    if not _are_constants(gemm.inputs[1:]):
        return False
    weight, bias = (tuple(tensor.shape) for tensor in gemm.inputs[1:])
    return len(weight) == 2 and bias == weight[:1] and weight[1] % _MULTIPLE == 0


def _are_constants(tensors: list[gs.Tensor]) -> bool:
    return all(isinstance(tensor, gs.Constant) for tensor in tensors)
