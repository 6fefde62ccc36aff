# SPDX-License-Identifier: Apache-2.0
"""The element type of every tensor of a model, and whether operators may have the types they get (strong typing)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from ..errors import RewriteError, VerificationError
from ..operators import ACT_TYPES, DOMAIN, OPERATORS, add_functions, node_attributes, opset_of

# "tensor(float)" and so on, as schemas write types.
_SCHEMA_NAMES: Mapping[int, str] = MappingProxyType(
    {kind: f"tensor({name.lower()})" for name, kind in TensorProto.DataType.items()}
)


def infer_element_types(model: ModelProto, precision: str) -> dict[str, int]:
    """TensorProto types of all tensors by name, inferred from inputs and weights alone.

    `precision` is the activation type of the padfree nodes. Raises RewriteError when a tensor's type stays unknown.
    """
    skeleton = _without_weights(model)
    add_functions(skeleton, precision)
    result = onnx.shape_inference.infer_shapes(skeleton)
    graph = result.graph
    types = {
        item.name: item.type.tensor_type.elem_type
        for items in (graph.value_info, graph.input, graph.output)
        for item in items
        if item.type.tensor_type.elem_type
    }
    for node in model.graph.node:
        for name in node.output:
            if name and name not in types:
                raise RewriteError(
                    f"the type of '{name}', which {node.op_type} '{node.name}' makes, cannot be worked out; "
                    f"export the model again, or choose precision fp32, which needs no types"
                )
    return types


def takes(op: str, kind: int, opset: int) -> bool:
    """Whether a standard operator may have inputs of a TensorProto type wherever it may have float32 ones.

    Convolutions and many activations have no bfloat16 before opset 22; Einsum and TopK have none at all.
    """
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    type_names = {formal.type_str for formal in schema.inputs}
    types = [set(item.allowed_type_strs) for item in schema.type_constraints if item.type_param_str in type_names]
    return all(_SCHEMA_NAMES[kind] in names for names in types if _SCHEMA_NAMES[TensorProto.FLOAT] in names)


def check_element_types(model: ModelProto, precision: str) -> dict[str, int]:
    """Infers all types and checks every node against its operator's type constraints: there are no implicit casts.

    Returns the types. Raises VerificationError naming the node, its types and what is allowed.
    """
    types = infer_element_types(model, precision)
    opset = opset_of(model)
    for node in model.graph.node:
        if node.domain == DOMAIN:
            _check_padfree(node, types, ACT_TYPES[precision])
        elif node.domain in ("", "ai.onnx"):
            _check_standard(node, types, onnx.defs.get_schema(node.op_type, opset))
    return types


def _without_weights(model: ModelProto) -> ModelProto:
    """The graph with its initializers as inputs of the same type, without padfree's bodies and other tensors' types."""
    source = model.graph
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(function for function in model.functions if function.domain != DOMAIN)
    result.graph.name = source.name
    result.graph.node.extend(source.node)
    result.graph.input.extend(source.input)
    names = {item.name for item in source.input}
    for tensor in source.initializer:
        if tensor.name not in names:
            result.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for item in source.output:
        result.graph.output.append(onnx.ValueInfoProto(name=item.name))
    return result


def _check_padfree(node: NodeProto, types: Mapping[str, int], act: int) -> None:
    spec, attributes = OPERATORS[node.op_type], node_attributes(node)
    allowed_types = {
        "act": (act,),
        "int32": (TensorProto.INT32,),
        "float32": (TensorProto.FLOAT,),
        "act or int32": (act, TensorProto.INT32),
        "fp8": (TensorProto.FLOAT8E4M3FN,),
        "int8": (TensorProto.INT8,),
    }
    for name, tensor in zip(node.input, spec.inputs_for(attributes), strict=True):
        if types[name] not in allowed_types[tensor.type]:
            raise _error(
                node, tensor.name, name, types[name], [_SCHEMA_NAMES[kind] for kind in allowed_types[tensor.type]]
            )


def _check_standard(node: NodeProto, types: Mapping[str, int], schema: onnx.defs.OpSchema) -> None:
    constraints = {item.type_param_str: sorted(item.allowed_type_strs) for item in schema.type_constraints}
    bound: dict[str, str] = {}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for position, name in enumerate(names):
            if not name or not formals:
                continue
            formal = formals[min(position, len(formals) - 1)]
            type_name = _SCHEMA_NAMES.get(types[name], str(types[name]))
            allowed_types = constraints.get(formal.type_str, [formal.type_str])
            is_mixed = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
            if not is_mixed and bound.setdefault(formal.type_str, type_name) != type_name:
                allowed_types = [bound[formal.type_str]]
            if type_name not in allowed_types:
                raise _error(node, formal.name, name, types[name], allowed_types)


def _error(node: NodeProto, formal: str, name: str, kind: int, types: list[str]) -> VerificationError:
    return VerificationError(
        f"{node.op_type} '{node.name or node.output[0]}': '{name}' ({formal}) is {_SCHEMA_NAMES.get(kind, kind)}, "
        f"allowed is {', '.join(types)}; this is a defect of padfree's conversion: please report it, or choose "
        f"precision fp32"
    )
