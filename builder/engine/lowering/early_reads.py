# SPDX-License-Identifier: Apache-2.0
"""Kernels that may read some of their inputs while the kernel before them still runs.

Attention and poolers begin by reading cu_seqlens and the task list, which one of an encoder's first kernels makes; an
embedding begins by reading ids. Such an input is complete early if another kernel runs between its producer and its
reader, in every order that TensorRT may choose: when a kernel begins, all kernels but the one before it have ended
(plugins/common/dependent_launch.cuh, rule 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from padfree.onnx_tools.operators import named_inputs, node_attributes, padfree_nodes, set_attribute

_KERNELS = (
    *("PadfreeSchedule", "PadfreeEmbedding", "PadfreeLayerNorm"),
    *("PadfreeLinear", "PadfreeLinearFp8", "PadfreeRotary", "PadfreeQkNormRotary"),
)
"""Operators that are a kernel in every engine, one that keeps that rule."""
_LAST = {"PadfreeLayerNorm": "has_pooler", "PadfreePool": "has_norm"}
"""With this flag, the last kernels of an encoder begin by reading cu_seqlens."""

Makers = Mapping[str, onnx.NodeProto]
"""By the name of a tensor, the node that makes it."""


def mark_early_reads(model: onnx.ModelProto) -> None:
    """Writes early_lengths into attention and poolers, early_ids into embeddings that are given offsets, in place."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    inputs = {value.name for value in model.graph.input}
    for node in padfree_nodes(model.graph):
        if node.op_type == "PadfreeAttention":
            early = _are_early(node, ("cu_seqlens", "tasks"), ("qk", "qkv", "q", "k", "v"), makers, inputs)
            set_attribute(node, "early_lengths", int(early))
        elif node.op_type in _LAST and node_attributes(node)[_LAST[node.op_type]]:
            set_attribute(node, "early_lengths", int(_are_early(node, ("cu_seqlens",), ("x",), makers, inputs)))
        elif node.op_type == "PadfreeEmbedding":
            early = _are_early(node, ("ids", "token_types"), ("cu_seqlens",), makers, inputs)
            set_attribute(node, "early_ids", int(early))


def _are_early(
    node: onnx.NodeProto, reads: Sequence[str], later: Sequence[str], makers: Makers, inputs: set[str]
) -> bool:
    """Whether one of a node's inputs `later` depends on a kernel that depends on all that makes the inputs `reads`."""
    inputs_by_name = named_inputs(node)
    made_by = {id(makers[inputs_by_name[name]]) for name in reads if inputs_by_name.get(name) in makers}
    kernels = _kernels([inputs_by_name[name] for name in later if name in inputs_by_name], makers)
    return any(_depends(kernel, made_by, makers, inputs) for kernel in kernels)


def _kernels(tensors: Sequence[str], makers: Makers) -> list[onnx.NodeProto]:
    """The last kernels that tensors depend on, looking through changes of shape, sums and the like."""
    kernels, waiting, seen = list[onnx.NodeProto](), list(tensors), set[int]()
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type in _KERNELS:
            kernels.append(node)
        else:
            waiting += node.input
    return kernels


def _depends(kernel: onnx.NodeProto, made_by: set[int], makers: Makers, inputs: set[str]) -> bool:
    """Whether a node depends on an input of the model, and on each of these other nodes."""
    above = _ancestors(kernel, makers)
    on_input = any(name in inputs for node in (kernel, *above) for name in node.input)
    return on_input and made_by <= {id(node) for node in above}


def _ancestors(node: onnx.NodeProto, makers: Makers) -> list[onnx.NodeProto]:
    """All nodes that a node depends on."""
    ancestors, waiting = dict[int, onnx.NodeProto](), list(node.input)
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and id(maker) not in ancestors:
            ancestors[id(maker)] = maker
            waiting += maker.input
    return list(ancestors.values())
