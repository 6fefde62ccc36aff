# SPDX-License-Identifier: Apache-2.0
"""Adds function bodies to a model's padfree nodes, so that it runs where there is no plugin, and removes them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper
from padfree.contract.names import DOMAIN

from ..errors import RewriteError
from ..files import copy_message, replace_items
from .bodies import BODIES
from .body_builder import BodyBuilder
from .catalog import DOMAIN_VERSION, OPERATORS
from .nodes import check_node, node_attributes, padfree_nodes
from .spec import AttributeValue

MIN_OPSET = 14
MAX_OPSET = 23
OVERLOAD_IR_VERSION = 10  # the first that allows several functions with one name

ACT_TYPES: Mapping[str, int] = MappingProxyType(
    {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
)


def functions_for(model_opset: int, nodes: Iterable[NodeProto], precision: str) -> list[FunctionProto]:
    """One function for each operator and variant among the nodes, in the model's own opset.

    Operators whose attributes change their inputs or their computation have one body per variant, distinguished by the
    function's `overload` (see `overload_of`). Nodes of other domains are skipped.
    `precision` is the activation type of the graph: "fp32", "fp16" or "bf16".
    Raises RewriteError for an opset outside 14..23 or below 19 where there is e4m3, another precision, or a node that
    does not fit its description.
    """
    check_opset(model_opset)
    if precision not in ACT_TYPES:
        raise RewriteError(f"precision is {precision!r}, allowed are {', '.join(ACT_TYPES)}; choose one of them")
    functions: dict[tuple[str, str], FunctionProto] = {}
    for node in nodes:
        if node.domain != DOMAIN:
            continue
        check_node(node)
        key = (node.op_type, overload_of(node))
        if key not in functions:
            attributes = tuple(sorted(node_attributes(node).items()))
            functions[key] = _function(node.op_type, attributes, model_opset, ACT_TYPES[precision])
    return [functions[key] for key in sorted(functions)]


def overload_of(node: NodeProto) -> str:
    """The `overload` of the node's function body; empty for operators with one body."""
    return OPERATORS[node.op_type].variant(node_attributes(node))


def opset_of(model: ModelProto) -> int:
    """The version of the standard operators that the model imports. Raises RewriteError when it imports none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise RewriteError("the model imports no standard operator set (domain ''); export it again with opset 17")


def check_opset(opset: int) -> None:
    """Raises RewriteError for an opset in which no bodies can be written."""
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise RewriteError(
            f"the model's opset is {opset}, allowed is {MIN_OPSET} to {MAX_OPSET}; rewrite the original file, whose "
            "opset is converted"
        )


def with_functions(model: ModelProto, precision: str = "fp32") -> ModelProto:
    """A copy in which every padfree node has its function body: it runs in onnxruntime without plugins.

    Existing function bodies are replaced. Raises RewriteError as `functions_for` does.
    """
    result = without_functions(model)
    add_functions(result, precision)
    return result


def add_functions(model: ModelProto, precision: str) -> None:
    """Gives every padfree node of a model without such functions its body, in place: weights are not copied.

    Raises RewriteError as `functions_for` does.
    """
    nodes = list(padfree_nodes(model.graph))
    model.functions.extend(functions_for(opset_of(model), nodes, precision))
    for node in nodes:
        node.overload = overload_of(node)
    if any(function.overload for function in model.functions):
        model.ir_version = max(model.ir_version, OVERLOAD_IR_VERSION)


def without_functions(model: ModelProto) -> ModelProto:
    """A copy with plain padfree nodes and without their bodies, as TensorRT needs it: its parser prefers bodies."""
    result = copy_message(model)
    replace_items(result.functions, (function for function in result.functions if function.domain != DOMAIN))
    replace_items(result.opset_import, (entry for entry in result.opset_import if entry.domain != DOMAIN))
    nodes = list(padfree_nodes(result.graph))
    for node in nodes:
        node.ClearField("overload")
    if nodes:
        result.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    return result


@functools.lru_cache(maxsize=256)
def _function(op: str, items: tuple[tuple[str, AttributeValue], ...], opset: int, act_type: int) -> FunctionProto:
    """The body for an operator with these attributes. It is cached for later models, so nobody may change it."""
    spec, attributes = OPERATORS[op], dict(items)
    builder = BodyBuilder(spec, attributes, opset, act_type)
    BODIES[spec.name](builder)
    return helper.make_function(
        DOMAIN,
        spec.name,
        [tensor.name for tensor in spec.inputs_for(attributes)],
        [tensor.name for tensor in spec.outputs_for(attributes)],
        builder.nodes,
        [helper.make_opsetid("", opset)],
        [attribute.name for attribute in spec.attributes if attribute.outside_engines is None],
        [helper.make_attribute(name, value) for name, value in spec.outside_engines.items()],
        doc_string=spec.doc,
        overload=spec.variant(attributes),
    )
