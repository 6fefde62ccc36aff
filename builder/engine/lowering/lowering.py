# SPDX-License-Identifier: Apache-2.0
"""From a rewritten model to what TensorRT's parser gets, step by step."""

from __future__ import annotations

from collections import Counter

import onnx
from padfree.onnx_tools import without_functions
from padfree.onnx_tools.operators import (
    MAX_HEAD_SIZE,
    node_attributes,
    padfree_nodes,
    set_attribute,
    write_engine_options,
)
from padfree.onnx_tools.passes import MAX_SEQLEN

from ...errors import BuildError
from .early_reads import mark_early_reads
from .parser_gaps import spell_for_parser
from .poolers import merge_poolers
from .pools import merge_pools
from .schedules import merge_schedules
from .short_axes import LEAST, lengthen_short_axes
from .task_lists import drop_unread_task_lists
from .wide_rows import widen_rows_of_norms

LARGEST_HEADS = {"disentangled": 128}  # of plugins/attention/launch.h, by the kind of bias


def name_plugin_nodes(model: onnx.ModelProto) -> None:
    """Gives every padfree node a name of its own, in place: the built engine is checked by these names."""
    counts = Counter(node.name for node in model.graph.node)
    for index, node in enumerate(padfree_nodes(model.graph)):
        if not node.name or counts[node.name] > 1:
            node.name = f"{node.op_type}_{index}" if not counts[f"{node.op_type}_{index}"] else f"padfree_node_{index}"
            counts[node.name] += 1


def set_max_seq_len(model: onnx.ModelProto, max_seq_len: int) -> None:
    """Writes the build's longest sequence into every attention node, in place; it chooses among kernels."""
    for node in padfree_nodes(model.graph):
        if node.op_type == "PadfreeAttention":
            set_attribute(node, "max_seq_len", max_seq_len)


def bound_max_seqlen(model: onnx.ModelProto, max_seq_len: int) -> None:
    """Bounds the `max_seqlen` input, which is read only for its shape, in place: 2 to the longest sequence.

    Triton gives it the most tokens of a *request*, not of a sequence (BATCH_MAX_ELEMENT_COUNT_AS_SHAPE): n * L for one
    of [n, L]. The input may thus be larger than the padded axis ever gets, and no memory is planned for what is cut.
    Where it is 1, TensorRT 10.6 leaves the results of padded attention unwritten; with a second slot they are right.
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
