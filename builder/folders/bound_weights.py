# SPDX-License-Identifier: Apache-2.0
"""Gives an exported graph the weights of the PyTorch model that it was traced from, in place, without copies.

torch's exporter writes weights into its message, folds them, and writes that to a file, which takes longer than most of
what follows. So only the graph is exported, with weights as inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from padfree.onnx_tools.files import Array, Model, replace_items


class UnknownInputError(ValueError):
    """An input of the graph that is neither one of the model's nor a weight."""


def weights_of(module: Any) -> dict[str, Array]:
    """The parameters and buffers of a torch.nn.Module, by all of their names, in the memory that torch has them in."""
    weights_by_name = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().contiguous().numpy() for name, tensor in weights_by_name}


def bind_weights(graph: ModelProto, inputs: Collection[str], weights: Mapping[str, Array]) -> Model:
    """A model of a graph that was exported without weights; `graph` becomes its message.

    Args:
        graph: has an input for every weight.
        inputs: the names of the others.
        weights: values by name.

    Raises:
        UnknownInputError: an input is neither one of `inputs` nor a weight.
    """
    proto = graph.graph
    names = [item.name for item in proto.input if item.name not in inputs]
    unknown = [name for name in names if name not in weights]
    if unknown:
        raise UnknownInputError(f"the graph has inputs that are no weights: {', '.join(unknown[:3])}")
    replace_items(proto.input, (item for item in proto.input if item.name in inputs))
    values = {name: weights[name] for name in names} | _drop_transposes(graph, weights, set(names))
    names_read = {name for node in proto.node for name in node.input} | {item.name for item in proto.output}
    result = Model(graph)
    for name, array in values.items():
        if name in names_read:
            result.add_weight(name, array)
    return result


def _drop_transposes(graph: ModelProto, weights: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
    """Removes the nodes that transpose a matrix of weights, as linear layers have them; returns their results."""
    outputs = {item.name for item in graph.graph.output}
    sources: dict[str, Array] = {}
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        if _transposes(node, weights, names) and node.output[0] not in outputs:
            sources[node.output[0]] = weights[node.input[0]]
        else:
            nodes.append(node)
    replace_items(graph.graph.node, nodes)
    with ThreadPoolExecutor() as pool:
        arrays = pool.map(lambda array: np.ascontiguousarray(array.T), sources.values())
        return dict(zip(sources, arrays, strict=True))


def _transposes(node: NodeProto, weights: Mapping[str, Array], names: Collection[str]) -> bool:
    """Whether a node transposes a weight."""
    if node.op_type != "Transpose" or node.domain not in ("", "ai.onnx") or node.input[0] not in names:
        return False
    axes = [helper.get_attribute_value(item) for item in node.attribute if item.name == "perm"]
    return weights[node.input[0]].ndim == 2 and (not axes or list(axes[0]) == [1, 0])
