# SPDX-License-Identifier: Apache-2.0
"""Brings an ONNX model into the form that the passes work on: one flat graph, typed tensors, dimensions B and S."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, numpy_helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter
from padfree.contract.fields import MOST_NAME_LETTERS, is_name

from ..analysis.graph import drops_nothing, dtype_name, inline_constants, is_standard, node_name, tidy
from ..errors import RewriteError
from ..files.graph_io import export_model, import_graph
from ..files.model import Model
from ..operators import DOMAIN
from ..precision.widen import narrow_outputs, widen
from .canonical import canonical
from .fixed_axes import fixed_sizes, generalise
from .fixed_axes.sizes import EXPORT_AGAIN
from .fused import holds_fused
from .inputs import numbers_of, sequence_inputs_of, shared_inputs_of, token_inputs_of
from .quantized.rounding_nodes import only_tensorrt_rounds
from .skeleton import Types, infer, skeleton_of
from .standard_form import standardise

_SHOWN_LETTERS = 60
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def import_model(model_file: Model) -> gs.Graph:
    """Imports a model; its weights are shared, not copied.

    Fixed sizes of the batch or the sequence become dynamic, onnxruntime's fused operators standard ones. Raises
    RewriteError for a model that is rewritten already, whose inputs are not [B,S], or that has control flow or a fused
    operator that cannot be imported, and for one that is not valid ONNX.
    """
    _refuse(model_file.proto)
    try:
        return _import(model_file)
    except RewriteError:
        raise
    except Exception as error:
        reason = _invalid(model_file.proto)
        if reason is None:
            raise
        raise RewriteError(f"the model is not valid ONNX: {reason}; export it again") from error


def _import(model_file: Model) -> gs.Graph:
    model = canonical(model_file.proto)
    token_inputs, rows = token_inputs_of(model), sequence_inputs_of(model)
    axis_sizes = fixed_sizes(model, token_inputs)
    widths = {value.name: numbers_of(value) for value in model.graph.input if value.name in token_inputs}
    if axis_sizes and any(widths.values()):
        wide_input = next(name for name, width in widths.items() if width)
        raise RewriteError(
            f"input '{wide_input}' has several numbers a token, and the inputs fix sizes; {EXPORT_AGAIN}"
        )
    sizes: list[int | str] = [axis_sizes.batch or "B", axis_sizes.sequence or "S"]
    shapes = {name: [*sizes, *widths[name]] for name in token_inputs}
    others = {name: list[int | str](shape) for name, shape in shared_inputs_of(model).items()}
    others |= {name: ["B", *trailing] for name, trailing in rows.items()}
    skeleton = skeleton_of(model, shapes | others)
    types = _infer(skeleton)
    graph = import_graph(model_file.with_proto(model))
    for tensor in graph.inputs:
        tensor.shape = others[tensor.name] if tensor.name in others else ["B", "S", *widths.get(tensor.name, ())]
    _write_types(graph, types)
    if standardise(graph):
        _write_types(graph, _infer(_with_nodes_of(graph, skeleton)))
    inline_constants(graph)
    tidy(graph)
    _refuse_what_batches_share(graph)
    if axis_sizes:
        generalise(graph, axis_sizes)
    return graph


def standard_model(model: ModelProto) -> ModelProto:
    """The model in standard operators alone, in float32 inside, for tools that know no others, as TensorRT.

    That is the model itself where it holds no fused operator. Raises RewriteError as import_model.
    """
    if not holds_fused(model):
        return model
    wide = widen(Model(model))
    result = export_model(import_model(wide), wide).whole()
    narrow_outputs(result, model)
    return result


def _write_types(graph: gs.Graph, types: Mapping[str, onnx.TypeProto.Tensor]) -> None:
    """Writes what was inferred at the tensors that nodes make."""
    for name, tensor in graph.tensors().items():
        if isinstance(tensor, gs.Variable) and name in types and tensor.inputs:
            value_type = types[name]
            tensor.dtype = np.dtype(dtype_name(value_type.elem_type)) if value_type.elem_type else tensor.dtype
            tensor.shape = [_size(dim) for dim in value_type.shape.dim] if value_type.HasField("shape") else None


def _refuse(model: ModelProto) -> None:
    if any(node.domain == DOMAIN for node in model.graph.node):
        raise RewriteError(
            f"the model holds operators of the domain '{DOMAIN}' already; it has been rewritten: build or run it, or "
            "rewrite the original export"
        )
    foreign = next((node for node in model.graph.node if only_tensorrt_rounds(node)), None)
    if foreign is not None:
        raise RewriteError(
            f"node '{foreign.name}' (trt::{foreign.op_type}) is TensorRT's own, for numbers of few bits; of these, "
            "TRT_FP8QuantizeLinear and TRT_FP8DequantizeLinear are known, one after the other; rewrite the float "
            "model that was quantised"
        )
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if not is_name(value.name):
                raise RewriteError(
                    f"the model has an {kind} named {value.name[:_SHOWN_LETTERS]!r}; names of inputs and outputs must "
                    f"be 1 to {MOST_NAME_LETTERS} printable characters; export the model with other names"
                )


def _refuse_what_batches_share(graph: gs.Graph) -> None:
    """Raises RewriteError for scales that are taken from a whole batch, and for random numbers."""
    for node in graph.nodes:
        if is_standard(node, "DynamicQuantizeLinear") and not isinstance(node.inputs[0], gs.Constant):
            raise RewriteError(
                f"node '{node_name(node)}' (DynamicQuantizeLinear) takes its scale from the largest and smallest "
                "number of a whole batch, padding included: every sequence's result depends on the others and on "
                "the padding, so that no packed graph can give the same; rewrite the float model it was made from, or "
                "one with constant scales (QuantizeLinear and DequantizeLinear)"
            )
        if is_standard(node, *_RANDOM) or (is_standard(node, "Dropout") and not drops_nothing(node)):
            raise RewriteError(
                f"node '{node_name(node)}' ({node.op}) draws random numbers: no two runs give the same, so that "
                "nothing can be compared; export the model for inference (model.eval())"
            )


def _with_nodes_of(graph: gs.Graph, skeleton: ModelProto) -> ModelProto:
    """The skeleton with the nodes of the graph, and the constants that they need."""
    result = ModelProto()
    result.CopyFrom(skeleton)
    del result.graph.node[:]
    result.graph.node.extend(OnnxExporter.export_node(node) for node in graph.nodes)
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
        raise RewriteError(f"the model is not valid ONNX: {_words(error)}; export it again") from error


def _invalid(model: ModelProto) -> str | None:
    """What is wrong with a model that an importer stumbled over; None for a valid one."""
    try:
        onnx.checker.check_model(skeleton_of(model))
    except UnicodeDecodeError as error:  # of the checker's own message
        return f"a name in it is no text ({_words(error)})"
    except Exception as error:
        return _words(error)
    return None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
