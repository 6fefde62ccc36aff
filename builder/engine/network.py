# SPDX-License-Identifier: Apache-2.0
"""From an ONNX model to a TensorRT network, with errors that people can act on."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from padfree.onnx_tools import without_functions
from padfree.onnx_tools.files import Model, Piece, bytes_in_pieces
from padfree.onnx_tools.operators import (
    DOMAIN,
    MAX_HEAD_SIZE,
    node_attributes,
    padfree_nodes,
    set_attribute,
    write_engine_options,
)
from padfree.onnx_tools.passes import MAX_SEQLEN

from ..errors import BuildError
from .early_reads import mark_early_reads
from .parser_gaps import spell_for_parser
from .poolers import merge_poolers
from .pools import merge_pools
from .schedules import merge_schedules
from .short_axes import LEAST, lengthen_short_axes
from .task_lists import drop_unread_task_lists
from .wide_rows import widen_rows_of_norms

MAX_PROTOBUF_BYTES = 2**31 - 1
MAX_ERRORS_SHOWN = 3
EXTERNAL_DATA_NAME = "weights.bin"
LARGEST_HEADS = {"disentangled": 128}  # of plugins/attention/launch.h, by the kind of bias


def name_plugin_nodes(model: onnx.ModelProto) -> None:
    """Gives every padfree node a name of its own, in place: the built engine is checked by these names."""
    uses = Counter(node.name for node in model.graph.node)
    for index, node in enumerate(padfree_nodes(model.graph)):
        if not node.name or uses[node.name] > 1:
            node.name = f"{node.op_type}_{index}" if not uses[f"{node.op_type}_{index}"] else f"padfree_node_{index}"
            uses[node.name] += 1


def set_max_seq_len(model: onnx.ModelProto, max_seq_len: int) -> None:
    """Writes the build's longest sequence into every attention node, in place; it chooses among kernels."""
    for node in padfree_nodes(model.graph):
        if node.op_type == "PadfreeAttention":
            set_attribute(node, "max_seq_len", max_seq_len)


def bound_max_seqlen(model: onnx.ModelProto, max_seq_len: int) -> None:
    """Bounds the `max_seqlen` input, which is read for its shape alone, in place: two to the longest sequence.

    Triton gives it the most tokens of a *request*, not of a sequence (BATCH_MAX_ELEMENT_COUNT_AS_SHAPE): n * L for one
    of [n, L]. The input may thus be larger than the padded axis ever gets, and no memory is planned for what is cut.
    Where it is one, TensorRT 10.6 leaves what padded attention computes unwritten: with a second slot it is right.
    """
    if not _has_extent(model):
        return
    cut, bounded, ends = f"{MAX_SEQLEN}_cut", f"{MAX_SEQLEN}_bounded", f"{MAX_SEQLEN}_bound"
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name == MAX_SEQLEN:
                node.input[position] = bounded
    for name, value in ((f"{ends}_start", 0), (ends, max_seq_len), (f"{ends}_least", LEAST)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
    zero = onnx.helper.make_tensor("zero", onnx.TensorProto.INT32, [1], [0])
    new_nodes = (
        onnx.helper.make_node("Slice", [MAX_SEQLEN, f"{ends}_start", ends], [cut], name=cut),
        onnx.helper.make_node("Shape", [cut], [f"{cut}_shape"], name=f"{cut}_shape"),
        onnx.helper.make_node("Max", [f"{cut}_shape", f"{ends}_least"], [f"{bounded}_shape"], name=f"{bounded}_shape"),
        onnx.helper.make_node("ConstantOfShape", [f"{bounded}_shape"], [bounded], name=bounded, value=zero),
    )
    for node in reversed(new_nodes):
        model.graph.node.insert(0, node)


def _has_extent(model: onnx.ModelProto) -> bool:
    """Whether the model has the input [S] of the packed interface for padded nodes, and not one [B,S] of that name."""
    shapes = (value.type.tensor_type.shape.dim for value in model.graph.input if value.name == MAX_SEQLEN)
    return any(len(dims) == 1 for dims in shapes)


def for_parser(model: onnx.ModelProto, max_seq_len: int) -> onnx.ModelProto:
    """A copy of a rewritten model as TensorRT needs it: plain, named padfree nodes that know the longest sequence.

    Raises BuildError for outputs that an engine cannot have, and heads for which there is no kernel.
    """
    _check_outputs(model)
    _check_heads(model)
    plain = without_functions(model)
    name_plugin_nodes(plain)
    set_max_seq_len(plain, max_seq_len)
    drop_unread_task_lists(plain, max_seq_len)
    widen_rows_of_norms(plain)
    merge_poolers(plain)
    merge_pools(plain)
    merge_schedules(plain)
    mark_early_reads(plain)
    write_engine_options(plain)
    bound_max_seqlen(plain, max_seq_len)
    if not _has_extent(plain):
        lengthen_short_axes(plain)
    spell_for_parser(plain)
    return plain


def _check_outputs(model: onnx.ModelProto) -> None:
    """Raises BuildError for outputs that are inputs or texts: engines know none of these."""
    inputs = {value.name for value in model.graph.input}
    for value in model.graph.output:
        is_text = value.type.tensor_type.elem_type == onnx.TensorProto.STRING
        if is_text or value.name in inputs:
            kind = "texts" if is_text else "an input"
            raise BuildError(
                f"output '{value.name}' is {kind}, which an engine cannot give out; remove it from the outputs of the "
                "original file and rewrite that, or run the rewritten file in onnxruntime"
            )


def _check_heads(model: onnx.ModelProto) -> None:
    """Raises BuildError for heads that attention's kernels do not take; the file itself runs in onnxruntime."""
    for node in padfree_nodes(model.graph):
        if node.op_type != "PadfreeAttention":
            continue
        attributes = node_attributes(node)
        size = int(attributes["head_size"])
        largest = LARGEST_HEADS.get(str(attributes["bias"]), MAX_HEAD_SIZE)
        if size % 8 or size > largest:
            raise BuildError(
                f"attention '{node.name}' has heads of {size} columns; engines take 8 to {largest}, in multiples of 8; "
                "run the rewritten file in onnxruntime (`padfree run`), or build the original in TensorRT itself"
            )


def plugin_node_names(model: onnx.ModelProto) -> dict[str, str]:
    """Name -> operator of every node that must become a plugin layer."""
    return {node.name: node.op_type for node in padfree_nodes(model.graph)}


def needed_plugin_names(model: onnx.ModelProto) -> dict[str, str]:
    """Name -> operator of the plugin nodes whose values reach an output.

    TensorRT drops the others: shapes follow from shapes, so that a tensor which is read by Shape alone is never made.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    waiting = [value.name for value in model.graph.output]
    needed = dict[str, str]()
    seen = set[str]()
    while waiting:
        node = producers.get(name := waiting.pop())
        if node is None or name in seen:
            continue
        seen.update(node.output)
        if node.domain == DOMAIN:
            needed[node.name] = node.op_type
        if node.op_type != "Shape":
            waiting.extend(node.input)
    return needed


def parse(
    trt: Any, logger: Any, network: Any, model: onnx.ModelProto, content: bytes | memoryview | None = None
) -> Any:
    """Parses a model, or its bytes where they are there, into a network.

    Models beyond protobuf's 2 GB go through a temporary file with the weights beside it.

    Returns:
        The parser, which owns weights that the network points to: keep it until the build is over.

    Raises:
        BuildError: the parser refused a node; the message names node, operator and reason.
    """
    parser = trt.OnnxParser(network, logger)
    if content is None and (pieces := serialized(Model(model))) is not None:
        content = b"".join(pieces)
    if content is not None:
        parsed = parser.parse(content)
    else:
        with tempfile.TemporaryDirectory(prefix="padfree-") as folder:
            path = Path(folder) / "model.onnx"
            onnx.save_model(model, str(path), save_as_external_data=True, location=EXTERNAL_DATA_NAME)
            parsed = parser.parse_from_file(str(path))
    if not parsed:
        raise BuildError(_parser_message(trt, parser, logger))
    return parser


def serialized(model: Model) -> Iterator[Piece] | None:
    """A model's bytes in pieces; None beyond protobuf's 2 GB."""
    try:
        size, pieces = bytes_in_pieces(model)
    except (EncodeError, ValueError):  # of one weight, in some versions; others serialise any size
        return None
    return pieces if size <= MAX_PROTOBUF_BYTES else None


def count_plugin_layers(trt: Any, network: Any, names: dict[str, str]) -> dict[str, int]:
    """Plugin layers of a parsed network by operator.

    Raises:
        BuildError: a padfree node became something else than a plugin layer.
    """
    layers = {network.get_layer(index).name: network.get_layer(index).type for index in range(network.num_layers)}
    lost = [f"{name} ({op})" for name, op in names.items() if layers.get(name) != trt.LayerType.PLUGIN_V3]
    if lost:
        raise BuildError(
            f"TensorRT {trt.__version__} made no plugin layer of {len(lost)} nodes, first {lost[0]}; the plugin "
            "library is older than the model: install padfree again, then rewrite the model"
        )
    return dict(Counter(names.values()))


def _parser_message(trt: Any, parser: Any, logger: Any) -> str:
    problems = []
    for index in range(min(parser.num_errors, MAX_ERRORS_SHOWN)):
        error = parser.get_error(index)
        op = error.node_operator()
        hint = "the plugin library lacks it or refused it" if _is_padfree(op) else "this TensorRT does not support it"
        problems.append(f"node '{error.node_name()}' ({op or 'no operator'}): {error.desc()}; {hint}")
    if not problems:
        problems.append(logger.errors[-1] if logger.errors else "no reason given")
    if logger.errors and logger.errors[-1] not in problems[0]:
        problems.append(f"log: {logger.errors[0]}")
    return (
        f"TensorRT {trt.__version__} cannot parse the model: {'. '.join(problems)}. Check `padfree doctor`, export the "
        "model with opset 17, or use a newer TensorRT"
    )


def _is_padfree(op: str) -> bool:
    return op.lower().startswith(DOMAIN)
