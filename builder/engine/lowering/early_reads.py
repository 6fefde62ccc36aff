# SPDX-License-Identifier: Apache-2.0
"""Kernels that may read some of their inputs while the kernel before them still runs.

Attention and poolers begin by reading cu_seqlens and the task list, which one of an encoder's first kernels makes; an
embedding begins by reading ids. Such an input is complete early if another kernel runs between its producer and its
reader, in every order that TensorRT may choose: when a kernel begins, all kernels but the one before it have ended
(plugins/common/dependent_launch.cuh, rule 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import is_padfree, padfree_attributes, padfree_inputs, producer

_KERNELS = (
    *("PadfreeSchedule", "PadfreeEmbedding", "PadfreeTokenRows", "PadfreeLayerNorm", "PadfreePostNorm"),
    *("PadfreeLinear", "PadfreeLinearFp8", "PadfreeLinearInt8", "PadfreeRotary", "PadfreeQkNormRotary"),
)
"""Operators that are a kernel in every engine, one that keeps that rule."""
_LAST = {"PadfreeLayerNorm": "has_pooler", "PadfreePool": "has_norm"}
"""With this flag, the last kernels of an encoder begin by reading cu_seqlens."""


def mark_early_reads(graph: gs.Graph) -> None:
    """Writes early_lengths into attention and poolers, early_ids into embeddings that are given offsets, in place."""
    for node in graph.nodes:
        if is_padfree(node, "PadfreeAttention"):
            early = _are_early(graph, node, ("cu_seqlens", "tasks"), ("qk", "qkv", "q", "k", "v"))
            node.attrs["early_lengths"] = int(early)
        elif is_padfree(node, *_LAST) and padfree_attributes(node)[_LAST[node.op]]:
            node.attrs["early_lengths"] = int(_are_early(graph, node, ("cu_seqlens",), ("x",)))
        elif is_padfree(node, "PadfreeEmbedding"):
            node.attrs["early_ids"] = int(_are_early(graph, node, ("ids", "token_types"), ("cu_seqlens",)))


def _are_early(graph: gs.Graph, node: gs.Node, reads: Sequence[str], later: Sequence[str]) -> bool:
    """Whether one of a node's inputs `later` depends on a kernel that depends on all that makes the inputs `reads`."""
    inputs_by_name = padfree_inputs(node)
    makers = [producer(inputs_by_name[name]) for name in reads if name in inputs_by_name]
    made_by = {id(maker) for maker in makers if maker is not None}
    kernels = _kernels([inputs_by_name[name] for name in later if name in inputs_by_name])
    return any(_depends(graph, kernel, made_by) for kernel in kernels)


def _kernels(tensors: Sequence[gs.Tensor]) -> list[gs.Node]:
    """The last kernels that tensors depend on, looking through changes of shape, sums and the like."""
    kernels, waiting, seen = list[gs.Node](), list(tensors), set[int]()
    while waiting:
        node = producer(waiting.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in _KERNELS:
            kernels.append(node)
        else:
            waiting += node.inputs
    return kernels


def _depends(graph: gs.Graph, kernel: gs.Node, made_by: set[int]) -> bool:
    """Whether a node depends on an input of the model, and on each of these other nodes."""
    above, inputs = _ancestors(kernel), {id(tensor) for tensor in graph.inputs}
    on_input = any(id(tensor) in inputs for node in (kernel, *above) for tensor in node.inputs)
    return on_input and made_by <= {id(node) for node in above}


def _ancestors(node: gs.Node) -> list[gs.Node]:
    """All nodes that a node depends on."""
    ancestors, waiting = dict[int, gs.Node](), list(node.inputs)
    while waiting:
        maker = producer(waiting.pop())
        if maker is not None and id(maker) not in ancestors:
            ancestors[id(maker)] = maker
            waiting += maker.inputs
    return list(ancestors.values())
