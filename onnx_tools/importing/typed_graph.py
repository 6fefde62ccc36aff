# SPDX-License-Identifier: Apache-2.0
"""From a message to a graph with typed tensors, and the steps from there to the form that the passes work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, numpy_helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from ..analysis import dtype_name, inline_constants, tidy
from ..errors import RewriteError
from ..files import Model, copy_message, import_graph, replace_items
from .fixed_axes import FixedSizes, fixed_sizes, generalise
from .fixed_axes.sizes import EXPORT_AGAIN
from .inputs import numbers_of, sequence_inputs_of, shared_inputs_of, token_inputs_of
from .skeleton import Types, infer, skeleton_of
from .standard_form import standardise


@dataclass(frozen=True)
class TypedGraph:
    """A graph whose inputs are [B,S,...], [B,...] or shared, and whose tensors have the types that ONNX infers.

    `skeleton` is the message that the types were inferred from, `fixed` are the sizes that the file fixes.
    """

    graph: gs.Graph
    skeleton: ModelProto
    fixed: FixedSizes


def typed_graph(model: Model) -> TypedGraph:
    """The message as a graph, which shares its weights. Raises RewriteError for inputs that no encoder has."""
    proto = model.proto
    token_inputs, rows = token_inputs_of(proto), sequence_inputs_of(proto)
    fixed = fixed_sizes(proto, token_inputs)
    widths = {value.name: numbers_of(value) for value in proto.graph.input if value.name in token_inputs}
    if fixed and any(widths.values()):
        wide_input = next(name for name, width in widths.items() if width)
        raise RewriteError(
            f"input '{wide_input}' has several numbers a token, and the inputs fix sizes; {EXPORT_AGAIN}"
        )
    sizes: list[int | str] = [fixed.batch or "B", fixed.sequence or "S"]
    shapes = {name: [*sizes, *widths[name]] for name in token_inputs}
    others = {name: list[int | str](shape) for name, shape in shared_inputs_of(proto).items()}
    others |= {name: ["B", *trailing] for name, trailing in rows.items()}
    skeleton = skeleton_of(proto, shapes | others)
    types = _infer(skeleton)
    graph = import_graph(model)
    for tensor in graph.inputs:
        tensor.shape = others[tensor.name] if tensor.name in others else ["B", "S", *widths.get(tensor.name, ())]
    _write_types(graph, types)
    return TypedGraph(graph, skeleton, fixed)


def expand_and_choose(draft: TypedGraph) -> TypedGraph:
    """Replaces fused operators and sequences by standard operators, and every If by the branch that is taken."""
    standardise(draft.graph)
    _write_types(draft.graph, _infer(_with_nodes_of(draft.graph, draft.skeleton)))
    return draft


def inline_and_tidy(draft: TypedGraph) -> TypedGraph:
    """Makes Constant nodes constants, and removes nodes that lead to no output."""
    inline_constants(draft.graph)
    tidy(draft.graph)
    return draft


def free_fixed_sizes(draft: TypedGraph) -> TypedGraph:
    """Replaces the sizes that the file fixes for batch and sequence by B and S."""
    if draft.fixed:
        generalise(draft.graph, draft.fixed)
    return draft


def words_of(error: Exception) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split())[:300]


def _write_types(graph: gs.Graph, types: Mapping[str, onnx.TypeProto.Tensor]) -> None:
    """Writes inferred types into the tensors that nodes make."""
    for name, tensor in graph.tensors().items():
        if isinstance(tensor, gs.Variable) and name in types and tensor.inputs:
            value_type = types[name]
            tensor.dtype = np.dtype(dtype_name(value_type.elem_type)) if value_type.elem_type else tensor.dtype
            tensor.shape = [_size(dim) for dim in value_type.shape.dim] if value_type.HasField("shape") else None


def _with_nodes_of(graph: gs.Graph, skeleton: ModelProto) -> ModelProto:
    """The skeleton with the nodes of the graph, and the constants that they need."""
    result = copy_message(skeleton)
    replace_items(result.graph.node, (OnnxExporter.export_node(node) for node in graph.nodes))
    names = {item.name for item in (*result.graph.initializer, *result.graph.input)}
    for name, tensor in graph.tensors().items():
        if isinstance(tensor, gs.Constant) and name not in names:
            result.graph.initializer.append(numpy_helper.from_array(tensor.values, name))
    return result


def _infer(skeleton: ModelProto) -> Types:
    """Checks the model, and infers types and shapes."""
    try:
        onnx.checker.check_model(skeleton)
        return infer(skeleton)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise RewriteError(f"the model is not valid ONNX: {words_of(error)}; export it again") from error


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
