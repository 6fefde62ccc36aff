# SPDX-License-Identifier: Apache-2.0
"""Puts the functions of a model in line, so that its graph has only operators."""

from __future__ import annotations

import onnx
from onnx import FunctionProto, ModelProto, inliner

from ..errors import RewriteError
from ..files import all_nodes, without_initializers
from ..operators import MIN_OPSET
from .skeleton import skeleton_of


def in_line(model: ModelProto, version: int) -> ModelProto:
    """The model without functions, in the opset `version`, which is its own; its weights are not touched.

    Raises RewriteError for functions of other opsets that ONNX's converter cannot convert.
    """
    result = without_initializers(model)
    _give_defaults(result)
    for function in result.functions:
        if _means_the_same(function, version):
            for item in function.opset_import:
                item.version = version if item.domain == "" else item.version
    others = [function for function in result.functions if _version(function, version) != version]
    for function in others:
        if min(_version(function, version), version) < MIN_OPSET:
            raise _refusal(function, version, "save the model with one opset for both")
    if others:  # the converter needs types, so weights become inputs
        result.graph.initializer.extend(model.graph.initializer)
        types_graph = skeleton_of(result)
        try:
            nodes = inliner.inline_local_functions(types_graph, convert_version=True).graph.node
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise _refusal(others[0], version, f"ONNX cannot convert it ({reason}); save the model again") from error
        del result.graph.node[:], result.functions[:], result.graph.initializer[:]
        result.graph.node.extend(nodes)
    else:
        result = inliner.inline_local_functions(result)
    result.graph.initializer.extend(model.graph.initializer)
    return result


def _version(function: FunctionProto, default: int) -> int:
    """The opset of a function's standard operators; the model's where it has none."""
    return next((int(item.version) for item in function.opset_import if item.domain == ""), default)


def _means_the_same(function: FunctionProto, version: int) -> bool:
    """Whether all of a function's operators are the same in opset `version`."""
    own = _version(function, version)
    names = {node.op_type for node in all_nodes(function) if node.domain == ""}
    return all(
        onnx.defs.has(name, own)
        and onnx.defs.has(name, version)
        and onnx.defs.get_schema(name, own).since_version == onnx.defs.get_schema(name, version).since_version
        for name in names
    )


def _refusal(function: FunctionProto, version: int, fix: str) -> RewriteError:
    return RewriteError(
        f"function '{function.domain}.{function.name}' is written in opset {_version(function, version)} and the model "
        f"in {version}; {fix}"
    )


def _give_defaults(model: ModelProto) -> None:
    """Adds to calls the attributes that they leave out: the inliner does not know the defaults of functions."""
    defaults = {_key(function): list(function.attribute_proto) for function in model.functions}
    for node in all_nodes(model.graph, *model.functions):
        names = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            item for item in defaults.get((node.domain, node.op_type, node.overload), []) if item.name not in names
        )
    for function in model.functions:
        function.attribute.extend(item.name for item in function.attribute_proto)
        del function.attribute_proto[:]


def _key(function: FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload
