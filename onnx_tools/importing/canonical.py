# SPDX-License-Identifier: Apache-2.0
"""Steps that bring models into one form where ONNX allows several (importing.py lists the steps)."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ..analysis import names_in_use
from ..errors import RewriteError
from ..files import all_graphs, all_nodes, fed_inputs, names_read, replace_items, without_initializers
from ..precision import HALVES
from .calls import in_line
from .expansion import check_expansion
from .opsets import to_known_opset
from .skeleton import Names
from .spreading import SPREAD, inputs_of_one_row, spread

_IR_VERSION = 10  # the first with overloads; since version 4, initializers need not be inputs
_STANDARD = "ai.onnx"  # the other name of the domain ''
_MOST_SPARSE_BYTES = 1 << 31


def name_outputs(graph: gs.Graph, model: ModelProto) -> bool:
    """Renames the outputs of a rewritten graph as in the original model; returns whether any name changed.

    An output that the original has as an input too becomes the rewritten graph's input of that name, if there is one.
    """
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    names = names_in_use(graph)
    changed = False
    for index, name in enumerate(dict.fromkeys(value.name for value in model.graph.output)):
        tensor = graph.outputs[index]
        if tensor.name == name:
            continue
        changed = True
        if name in inputs:
            graph.outputs[index] = inputs[name]
            continue
        for other in graph.tensors().values():
            if other.name == name:  # a weight
                while other.name in names:
                    other.name += "_inside"
                names.add(other.name)
        tensor.name = name
    return changed


def sort_nodes(model: ModelProto) -> ModelProto:
    """The model with its nodes in topological order; the model itself if they are, or if the graph has a cycle.

    Nodes whose order does not matter keep theirs. Weights that lie outside of the message are shared, not copied.
    """
    order = _order(model.graph)
    if order == list(range(len(order))):
        return model
    result = without_initializers(model)
    replace_items(result.graph.node, (model.graph.node[index] for index in order))
    result.graph.initializer.extend(model.graph.initializer)
    return result


def _order(graph: GraphProto) -> list[int]:
    """The indices of a graph's nodes, each after those of the nodes whose results it reads."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    waiting, readers = dict[int, int](), defaultdict[int, list[int]](list)
    for index, node in enumerate(graph.node):
        before = {makers[name] for name in names_read(node) if name in makers}
        waiting[index] = len(before)
        for maker in before:
            readers[maker].append(index)
    ready, result = [index for index, count in waiting.items() if not count], list[int]()
    heapify(ready)
    while ready:
        index = heappop(ready)
        result.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return result if len(result) == len(graph.node) else list(range(len(graph.node)))


def name_standard_domain(model: ModelProto) -> ModelProto:
    """Writes the domain of the standard operators as '' everywhere; files may also call it ai.onnx."""
    for holder in (model, *model.functions):
        for item in holder.opset_import:
            if item.domain == _STANDARD:
                item.domain = ""
    for node in all_nodes(model.graph, *model.functions):
        if node.domain == _STANDARD:
            node.domain = ""
    return model


def unify_versions(model: ModelProto) -> ModelProto:
    """Lists every domain once, and raises the IR version to one that allows all opsets.

    Raises RewriteError if a domain has two different versions, or the standard operators have none.
    """
    versions: dict[str, int] = {}
    for item in model.opset_import:
        if versions.setdefault(item.domain, item.version) != item.version:
            raise RewriteError(
                f"the model is not valid ONNX: it imports the operators of domain '{item.domain}' in two versions, "
                f"{versions[item.domain]} and {item.version}; export it again"
            )
    replace_items(model.opset_import, (helper.make_opsetid(domain, version) for domain, version in versions.items()))
    if "" not in versions:
        raise RewriteError("the model imports no standard operator set (domain ''); export it again with opset 17")
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def put_functions_in_line(model: ModelProto) -> ModelProto:
    """Replaces calls of functions by their nodes."""
    check_expansion(model)
    return in_line(model, standard_version(model))


def convert_opset(model: ModelProto) -> ModelProto:
    """Converts the model to an opset that padfree writes."""
    version = to_known_opset(model, standard_version(model))
    for item in model.opset_import:
        if item.domain == "":
            item.version = version
    return model


def standard_version(model: ModelProto) -> int:
    """The version of the standard operators, which the model imports."""
    return next(int(item.version) for item in model.opset_import if item.domain == "")


def densify(model: ModelProto) -> ModelProto:
    """Makes sparse initializers and constants dense."""
    for graph in all_graphs(model.graph):
        graph.initializer.extend(_dense(item) for item in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.SPARSE_TENSOR:
                attribute.t.CopyFrom(_dense(attribute.sparse_tensor))
                attribute.ClearField("sparse_tensor")
                attribute.name, attribute.type = "value", AttributeProto.TENSOR
    return model


def _dense(sparse: SparseTensorProto) -> TensorProto:
    """The dense tensor; indices are [N] in the flattened tensor, or [N, rank] with one for each axis."""
    name, dims = sparse.values.name, list(sparse.dims)
    try:
        values: npt.NDArray[Any] = numpy_helper.to_array(sparse.values)
    except (TypeError, ValueError) as error:
        raise RewriteError(
            f"the model is not valid ONNX: the values of sparse tensor '{name}' cannot be read ({error}); export it "
            "again"
        ) from error
    size = int(np.prod(dims, dtype=np.int64))
    if size * values.itemsize > _MOST_SPARSE_BYTES:
        raise RewriteError(
            f"sparse tensor '{name}' {dims} takes {size * values.itemsize} bytes when it is written out, allowed is "
            f"{_MOST_SPARSE_BYTES}; save the model with dense weights"
        )
    try:
        indices = numpy_helper.to_array(sparse.indices)
        flat_indices = np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 else indices
        result = np.zeros(size, values.dtype)
        result[flat_indices] = values
    except (IndexError, ValueError) as error:
        raise RewriteError(
            f"the model is not valid ONNX: the indices of sparse tensor '{name}' {dims} do not fit it ({error}); "
            "export it again"
        ) from error
    return numpy_helper.from_array(result.reshape(dims), name)


def drop_weight_inputs(model: ModelProto) -> ModelProto:
    """Removes inputs that have an initializer: they are weights."""
    replace_items(model.graph.input, fed_inputs(model))
    return model


def runnable(model: ModelProto) -> ModelProto:
    """The model as onnxruntime and others take it; the model itself if nothing has to change.

    Nodes that share a name get new names, integer inputs of unknown rank get two axes, [batch, sequence], masks of the
    Attention operator get a row for every query, and tables of RotaryEmbedding get one for every sequence.
    """
    node_names = [node.name for node in all_nodes(model.graph) if node.name]
    inputs = [value.name for value in fed_inputs(model) if _has_no_rank(value)]
    rows = inputs_of_one_row(model) if any(node.op_type in SPREAD for node in model.graph.node) else []
    if len(set(node_names)) == len(node_names) and not inputs and not rows:
        return model
    result = without_initializers(model)
    names, seen = Names(result.graph), set[str]()
    for node in all_nodes(result.graph):
        if node.name in seen:
            node.name = names.fresh(node.name)
        if node.name:
            seen.add(node.name)
    for value in result.graph.input:
        for _ in range(2 if value.name in inputs else 0):
            value.type.tensor_type.shape.dim.add()
    spread(result.graph, rows, names)
    result.graph.initializer.extend(model.graph.initializer)
    return result


def _has_no_rank(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    is_float = kind.elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE, *HALVES)
    return value.type.HasField("tensor_type") and not is_float and not kind.HasField("shape")


def separate_outputs(model: ModelProto) -> ModelProto:
    """Puts an Identity between an input, weight or constant and the output that it is; removes repeated outputs."""
    graph = model.graph
    unique = {value.name: value for value in reversed(graph.output)}
    replace_items(graph.output, [unique[name] for name in dict.fromkeys(value.name for value in graph.output)])
    names = Names(graph)
    used_names = {item.name for item in (*graph.input, *graph.initializer)}
    constants = {node.output[0] for node in graph.node if node.op_type == "Constant" and not node.domain}
    for value in graph.output:
        source = value.name
        if source in used_names:
            value.name = names.fresh(f"{source}_output")
        elif source in constants:  # the output keeps the name, readers get the new one
            source = names.fresh(f"{source}_value")
            for node in all_nodes(graph):
                for names_of_node in (node.input, node.output):
                    for index, name in enumerate(names_of_node):
                        if name == value.name:
                            names_of_node[index] = source
        used_names.add(value.name)
        if source != value.name:
            graph.node.append(helper.make_node("Identity", [source], [value.name], value.name))
    return model
