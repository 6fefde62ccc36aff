# SPDX-License-Identifier: Apache-2.0
"""Parses an ONNX model into a TensorRT network, with errors that people can act on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from padfree.onnx_tools.files import Model, Piece, bytes_in_pieces
from padfree.onnx_tools.operators import DOMAIN, padfree_nodes

from ..errors import BuildError
from .large_files import remove_model, write_aside

MAX_PROTOBUF_BYTES = 2**31 - 1
MAX_ERRORS_SHOWN = 3


def plugin_node_names(model: onnx.ModelProto) -> dict[str, str]:
    """Name -> operator of every node that must become a plugin layer."""
    return {node.name: node.op_type for node in padfree_nodes(model.graph)}


def needed_plugin_names(model: onnx.ModelProto) -> dict[str, str]:
    """Name -> operator of the plugin nodes whose values reach an output.

    TensorRT drops the others: shapes follow from shapes, so that a tensor which is read by Shape alone is never made.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    waiting = [value.name for value in model.graph.output]
    plugin_names = dict[str, str]()
    seen = set[str]()
    while waiting:
        node = producers.get(name := waiting.pop())
        if node is None or name in seen:
            continue
        seen.update(node.output)
        if node.domain == DOMAIN:
            plugin_names[node.name] = node.op_type
        if node.op_type != "Shape":
            waiting.extend(node.input)
    return plugin_names


def parse(
    trt: Any,
    logger: Any,
    network: Any,
    model: onnx.ModelProto,
    content: bytes | memoryview | None = None,
    file: Path | None = None,
) -> Any:
    """Parses a model, or its bytes or its file where given, into a network.

    Models beyond protobuf's 2 GB go through a temporary file with the weights beside it.

    Returns:
        The parser, which owns weights that the network points to: keep it until the build is over.

    Raises:
        BuildError: the parser refused a node; the message names node, operator and reason. Or there is no room for the
            temporary file.
    """
    parser = trt.OnnxParser(network, logger)
    if file is None and content is None and (pieces := serialize(Model(model))) is not None:
        content = b"".join(pieces)
    if file is not None:
        is_parsed = parser.parse_from_file(str(file))
    elif content is not None:
        is_parsed = parser.parse(content)
    else:
        aside = write_aside(Model(model))
        try:
            is_parsed = parser.parse_from_file(str(aside))
        finally:
            remove_model(aside)
    if not is_parsed:
        raise BuildError(_parser_message(trt, parser, logger))
    return parser


def serialize(model: Model, *, consume: bool = False) -> Iterator[Piece] | None:
    """A model's bytes in pieces, as bytes_in_pieces gives them; None beyond protobuf's 2 GB."""
    try:
        size, pieces = bytes_in_pieces(model, consume=consume)
    except (EncodeError, ValueError):  # of one weight, in some versions; others serialise any size
        return None
    return pieces if size <= MAX_PROTOBUF_BYTES else None


def check_plugin_layers(trt: Any, network: Any, names: dict[str, str]) -> None:
    """Refuses a parsed network that has no plugin layer for one of these nodes.

    Args:
        trt: the module.
        network: TensorRT's network.
        names: operators of padfree by the names of their nodes.

    Raises:
        BuildError: a padfree node became something other than a plugin layer.
    """
    layers = {network.get_layer(index).name: network.get_layer(index).type for index in range(network.num_layers)}
    lost_layers = [f"{name} ({op})" for name, op in names.items() if layers.get(name) != trt.LayerType.PLUGIN_V3]
    if lost_layers:
        raise BuildError(
            f"TensorRT {trt.__version__} made no plugin layer of {len(lost_layers)} nodes, first {lost_layers[0]}; the "
            "plugin library is older than the model: install padfree again, then rewrite the model"
        )


def _parser_message(trt: Any, parser: Any, logger: Any) -> str:
    problems = []
    for index in range(min(parser.num_errors, MAX_ERRORS_SHOWN)):
        error = parser.get_error(index)
        op = error.node_operator()
        is_ours = op.lower().startswith(DOMAIN)
        hint = "the plugin library lacks it or refused it" if is_ours else "this TensorRT does not support it"
        problems.append(f"node '{error.node_name()}' ({op or 'no operator'}): {error.desc()}; {hint}")
    if not problems:
        problems.append(logger.errors[-1] if logger.errors else "no reason given")
    if logger.errors and logger.errors[-1] not in problems[0]:
        problems.append(f"log: {logger.errors[0]}")
    return (
        f"TensorRT {trt.__version__} cannot parse the model: {'. '.join(problems)}. Check `padfree doctor`, export the "
        "model with opset 17, or use a newer TensorRT"
    )
