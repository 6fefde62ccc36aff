# SPDX-License-Identifier: Apache-2.0
"""Pooling that norms its rows and gives float32 itself.

Where only pooling reads the last norm's rows, one kernel reads the rows before the norm and gives the vectors; norm,
sum, L2 norm and cast would take four.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import find_padfree, is_padfree, padfree_attributes, producer, remove_nodes, takes_rows

from .readers import is_half_constant, is_to_float, only_reader

_MULTIPLE, _MOST = 8, 1024
"""The width of rows that PadfreePool norms is a multiple of the first, and at most the second."""


def merge_pools(graph: gs.Graph) -> None:
    """Lets every PadfreePool of half precision take over a norm and the cast after it, in place.

    Each only where nothing else reads the tensor between. The norm may follow a pool that takes single rows.
    """
    for pool in find_padfree(graph, "PadfreePool"):
        ahead = producer(pool.inputs[0])
        if ahead is not None and only_reader(graph, ahead.outputs[0], "PadfreePool") and _can_norm(ahead, pool):
            pool.inputs[0] = ahead.inputs[0]
            _take_norm(graph, ahead, pool)
        norm = only_reader(graph, pool.outputs[0], "PadfreeLayerNorm")
        if norm is not None and takes_rows(pool) and _can_norm(norm, pool):
            result = norm.outputs[0]
            _take_norm(graph, norm, pool)
            pool.outputs = [result]
        cast = only_reader(graph, pool.outputs[0], "Cast")
        if cast is not None and is_to_float(cast):
            result = cast.outputs[0]
            remove_nodes(graph, [cast])
            pool.outputs = [result]
            pool.attrs["results"] = "fp32"


def _can_norm(norm: gs.Node, pool: gs.Node) -> bool:
    """Whether a node is a norm that adds nothing to its rows, and the pool can take it over."""
    if not is_padfree(norm, "PadfreeLayerNorm") or padfree_attributes(pool)["has_norm"]:
        return False
    attributes = padfree_attributes(norm)
    if attributes["results"] != "act" or any(attributes[f"has_{name}"] for name in ("bias", "residual", "sum")):
        return False
    constants = norm.inputs[1:]  # gamma and beta, which the kernel reads early
    if not all(map(is_half_constant, constants)) or padfree_attributes(pool)["mode"] == "max":
        return False
    width = constants[0].shape[0]
    return bool(width % _MULTIPLE == 0 and width <= _MOST)


def _take_norm(graph: gs.Graph, norm: gs.Node, pool: gs.Node) -> None:
    attributes, constants = padfree_attributes(norm), list(norm.inputs[1:])
    remove_nodes(graph, [norm])
    pool.inputs = [*pool.inputs, *constants]
    pool.attrs["has_norm"] = 1
    pool.attrs.update((name, attributes[name]) for name in ("epsilon", "has_beta", "rms"))
