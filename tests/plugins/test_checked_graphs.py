# SPDX-License-Identifier: Apache-2.0
"""The graphs of `padfree doctor --check`: the library accepts their attributes, types and shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from padfree.builder.operator_check.cases import Case, all_cases
from padfree.builder.operator_check.graphs import CaseGraph
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes, with_functions
from padfree.onnx_tools.precision.element_types import infer_element_types
from padfree.onnx_tools.precision.widen import widen

from tests.support.attention_tasks import most_entries

from .plugin_abi import BF16, FP8, FP16, FP32, INT8, INT32, PluginLibrary

TYPES = {
    TensorProto.FLOAT: FP32, TensorProto.FLOAT16: FP16, TensorProto.BFLOAT16: BF16, TensorProto.INT32: INT32,
    TensorProto.FLOAT8E4M3FN: FP8, TensorProto.INT8: INT8,
}  # fmt: skip


def shapes_of(graph: CaseGraph, model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor; task lists are as long as the plugins make them."""
    wide = widen(Model(model)).proto
    names = list(dict.fromkeys(name for node in wide.graph.node for name in node.output))
    there = {value.name for value in wide.graph.output}
    runs = with_functions(wide)
    runs.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    asked = [value.name for value in runs.graph.output]
    actual = open_session(Model(runs), optimize=False).run(asked, graph.feeds)
    shapes = {name: np.shape(value) for name, value in zip(asked, actual, strict=True)}
    shapes |= {name: value.shape for name, value in graph.feeds.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in padfree_nodes(model.graph):
        heads = node_attributes(node).get("num_heads")
        for name in node.output:
            if name.endswith("_tasks"):
                shapes[name] = (most_entries(graph.tokens, len(graph.lengths), int(heads or 0)), 4)
    return shapes


CASES = [case for case in all_cases() if case.kind in ("fp16", "fp8", "int8", "int32") or case.variant == "plain"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operator}, {case.variant}, {case.kind}")
def test_the_library_takes_every_node(library: PluginLibrary, case: Case) -> None:
    graph = case.make()
    model = graph.model()
    types, shapes = infer_element_types(model, graph.precision), shapes_of(graph, model)
    for node in padfree_nodes(model.graph):
        attributes = node_attributes(node)
        plugin = library.create(node.op_type, attributes)
        assert plugin is not None, node.name
        kinds = [TYPES[types[name]] for name in (*node.input, *node.output)]
        for position in range(len(kinds)):
            assert plugin.supports(position, kinds), (node.name, position, kinds)
        assert plugin.output_types(kinds[: len(node.input)]) == kinds[len(node.input) :]
        assert len(OPERATORS[node.op_type].outputs_for(attributes)) == len(node.output)
        assert plugin.on_shape_change([shapes[name] for name in node.input]), node.name
        plugin.destroy()
