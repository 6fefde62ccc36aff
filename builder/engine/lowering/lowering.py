# SPDX-License-Identifier: Apache-2.0
"""From a rewritten model to what TensorRT's parser gets, step by step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_graphsurgeon as gs
from padfree.onnx_tools import GraphModel
from padfree.onnx_tools.analysis import Editor, dtype_name, is_padfree, padfree_attributes
from padfree.onnx_tools.files import Model
from padfree.onnx_tools.operators import DOMAIN, MAX_HEAD_SIZE, OPERATORS
from padfree.onnx_tools.passes import MAX_SEQLEN

from ...errors import BuildError
from .early_reads import mark_early_reads
from .parser_gaps import spell_for_parser
from .poolers import merge_poolers
from .pools import merge_pools
from .schedules import merge_schedules
from .short_axes import LEAST, lengthen_short_axes
from .task_lists import drop_unread_task_lists, mark_causal_task_lists
from .wide_rows import widen_rows_of_norms

LARGEST_HEADS = {"disentangled": 128}  # of plugins/attention/launch.h, by the kind of bias


def for_parser(model: Model, max_seq_len: int) -> Model:
    """A rewritten model as TensorRT's parser gets it; the given one stays as it is. Raises BuildError as lower does."""
    rewritten = GraphModel.of(model)
    lower(rewritten.graph, max_seq_len)
    return rewritten.export()


def lower(graph: gs.Graph, max_seq_len: int) -> None:
    """Makes the graph of a rewritten model what TensorRT needs, in place: padfree nodes know the longest sequence.

    Raises BuildError for outputs that an engine cannot have, and heads for which there is no kernel.
    """
    _check_outputs(graph)
    _check_heads(graph)
    name_plugin_nodes(graph)
    set_max_seq_len(graph, max_seq_len)
    drop_unread_task_lists(graph, max_seq_len)
    mark_causal_task_lists(graph)
    widen_rows_of_norms(graph)
    merge_poolers(graph)
    merge_pools(graph)
    merge_schedules(graph)
    mark_early_reads(graph)
    _write_engine_options(graph)
    bound_max_seqlen(graph, max_seq_len)
    if _extent(graph) is None:
        lengthen_short_axes(graph)
    spell_for_parser(graph)


def name_plugin_nodes(graph: gs.Graph) -> None:
    """Gives every padfree node a name of its own, in place: the built engine is checked by these names."""
    counts = Counter(node.name for node in graph.nodes)
    for index, node in enumerate(node for node in graph.nodes if node.domain == DOMAIN):
        if not node.name or counts[node.name] > 1:
            node.name = f"{node.op}_{index}" if not counts[f"{node.op}_{index}"] else f"padfree_node_{index}"
            counts[node.name] += 1


def set_max_seq_len(graph: gs.Graph, max_seq_len: int) -> None:
    """Writes the build's longest sequence into every attention node, in place; it chooses among kernels."""
    for node in graph.nodes:
        if is_padfree(node, "PadfreeAttention"):
            node.attrs["max_seq_len"] = max_seq_len


def _write_engine_options(graph: gs.Graph) -> None:
    """Writes the options of engines that padfree nodes lack, in place: plugins have no defaults."""
    for node in graph.nodes:
        if node.domain == DOMAIN:
            for name, value in OPERATORS[node.op].engine_options.items():
                node.attrs.setdefault(name, value)


def bound_max_seqlen(graph: gs.Graph, max_seq_len: int) -> None:
    """Bounds the size of the `max_seqlen` input to 2..`max_seq_len`, in place; only its shape is read.

    Triton gives it the most tokens of a *request*, not of a sequence (BATCH_MAX_ELEMENT_COUNT_AS_SHAPE): n * L for one
    of [n, L]. So it may be larger than the padded axis ever gets, and no memory is planned for what is cut off. With a
    size of 1, TensorRT 10.6 leaves the results of padded attention unwritten; with a second slot they are right.
    """
    extent = _extent(graph)
    if extent is None:
        return
    readers, count, editor = list(extent.outputs), len(graph.nodes), Editor(graph)
    start, end, least = (
        editor.constant(f"{MAX_SEQLEN}_{name}", np.asarray([value], np.int64))
        for name, value in (("start", 0), ("end", max_seq_len), ("least", LEAST))
    )
    stem = f"{MAX_SEQLEN}_bounded"
    cut = editor.op("Slice", extent, start, end, stem=f"{MAX_SEQLEN}_cut")
    size = editor.op("Shape", cut, stem=f"{MAX_SEQLEN}_cut_shape")
    shape = editor.op("Max", size, least, stem=f"{stem}_shape")
    zero = gs.Constant("zero", np.zeros(1, np.int32))
    bounded = editor.op("ConstantOfShape", shape, stem=stem, value=zero)
    for node in readers:
        node.inputs = [bounded if tensor is extent else tensor for tensor in node.inputs]
    graph.nodes = [*graph.nodes[count:], *graph.nodes[:count]]


def _extent(graph: gs.Graph) -> gs.Tensor | None:
    """The packed interface's input [S] for padded nodes; None if there is none, or one [B,S] has its name."""
    return next((item for item in graph.inputs if item.name == MAX_SEQLEN and len(item.shape or ()) == 1), None)


def _check_outputs(graph: gs.Graph) -> None:
    """Raises BuildError for outputs that are inputs or texts, which engines cannot have."""
    inputs = {id(tensor) for tensor in graph.inputs}
    for tensor in graph.outputs:
        is_text = dtype_name(tensor.dtype) == "object"
        if is_text or id(tensor) in inputs:
            kind = "texts" if is_text else "an input"
            raise BuildError(
                f"output '{tensor.name}' is {kind}, which an engine cannot give out; remove it from the outputs of the "
                "original file and rewrite that, or run the rewritten file in onnxruntime"
            )


def _check_heads(graph: gs.Graph) -> None:
    """Raises BuildError for heads that the attention kernels do not take; the file itself runs in onnxruntime."""
    for node in graph.nodes:
        if not is_padfree(node, "PadfreeAttention"):
            continue
        attributes = padfree_attributes(node)
        size = int(attributes["head_size"])
        largest = LARGEST_HEADS.get(str(attributes["bias"]), MAX_HEAD_SIZE)
        if size % 8 or size > largest:
            raise BuildError(
                f"attention '{node.name}' has heads of {size} columns; engines take 8 to {largest}, in multiples of 8; "
                "run the rewritten file in onnxruntime (`padfree run`), or build the original in TensorRT itself"
            )
