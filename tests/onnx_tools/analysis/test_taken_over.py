# SPDX-License-Identifier: Apache-2.0
"""What is known about a graph is kept across a change for what the change leaves alone, and for nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.analysis import check
from padfree.onnx_tools.analysis.copies import Wiring, copy_of
from padfree.onnx_tools.analysis.symbolic import Analysis, Facts, analyse
from padfree.onnx_tools.files.graph_io import export_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.importing import import_model

from tests.onnx_tools.random_models.random_graphs import RandomGraph
from tests.onnx_tools.random_models.random_search import case
from tests.support.encoder import HIDDEN, one_layer, with_output


def assert_same_facts(actual: Mapping[str, Facts], wanted: Mapping[str, Facts]) -> None:
    assert actual.keys() == wanted.keys()
    for name, facts in wanted.items():
        assert actual[name].says_the_same(facts), f"'{name}': {actual[name]} instead of {facts}"


def random_model(number: int) -> tuple[ModelProto, str]:
    steps, outputs, pooling, interface = case(31, number)
    graph = RandomGraph()
    graph.run(steps)
    return graph.finish(outputs, pooling), interface


@pytest.mark.parametrize("programs", [range(10), pytest.param(range(10, 40), marks=pytest.mark.slow)])
def test_after_every_pass_the_same_is_known_as_from_scratch(
    monkeypatch: pytest.MonkeyPatch, programs: Sequence[int]
) -> None:
    taken_over = list[int]()

    def both(graph: gs.Graph, before: Analysis | None = None) -> Analysis:
        actual = analyse(graph, before)
        assert_same_facts(actual.facts, analyse(graph).facts)
        taken_over.append(len(actual.steps.keys() & (before.steps.keys() if before is not None else set())))
        return actual

    monkeypatch.setattr(check, "analyse", both)
    for number in programs:
        model, interface = random_model(number)
        with contextlib.suppress(RewriteError):  # raised after all passes, for graphs that read padding
            rewrite(model, interface=interface, verify=False)
    assert len(taken_over) > 4 * len(programs)
    assert sum(taken_over) > 100 * len(programs)


def import_graph(model: ModelProto) -> gs.Graph:
    return import_model(Model(model))


def choose(axis_of_indices: int) -> ModelProto:
    """GatherND of tokens by columns that a Concat joins: its rule inspects the Concat's inputs."""
    builder, x = one_layer()
    size = builder.op("Squeeze", builder.op("Shape", "input_ids", start=0, end=1))
    rows = builder.op("Range", builder.constant(0, np.int64), size, builder.constant(1, np.int64))
    column = builder.op("Unsqueeze", rows, builder.axes(axis_of_indices))
    zeros = builder.op("Mul", column, builder.constant(0, np.int64))
    positions = builder.op("Concat", column, zeros, axis=1)
    return with_output(builder.op("GatherND", x, positions), builder, ["batch", HIDDEN])


def test_a_rule_that_looks_further_is_asked_again() -> None:
    graph = import_graph(choose(1))
    before = analyse(graph)
    (gather,) = (node for node in graph.nodes if node.op == "GatherND")
    assert id(gather) not in before.steps
    after = analyse(graph, before)
    assert_same_facts(after.facts, before.facts)
    unchanged = [node for node in graph.nodes if id(node) in before.steps]
    assert all(after.steps[id(node)] is before.steps[id(node)] for node in unchanged)


def test_what_follows_from_an_equal_tensor_is_kept_and_from_another_learnt() -> None:
    builder, x = one_layer()
    first = builder.op("Tanh", x)
    second = builder.op("Add", builder.op("Reshape", first, builder.axes(0, 0, HIDDEN)), first)
    graph = import_graph(with_output(second, builder, ["batch", "sequence", HIDDEN]))
    (tanh,) = (node for node in graph.nodes if node.op == "Tanh")
    (reshape,) = (node for node in graph.nodes if node.op == "Reshape" and node.inputs[0] is tanh.outputs[0])
    before = analyse(graph)
    replaced = gs.Node("Sigmoid", "sigmoid", {}, list(tanh.inputs), [])
    graph.nodes[graph.nodes.index(tanh)] = replaced
    output = tanh.outputs[0]
    tanh.outputs.clear()
    replaced.outputs = [output]
    equal = analyse(graph, before)
    assert equal.facts[output.name] is before.facts[output.name]
    assert equal.steps[id(reshape)] is before.steps[id(reshape)]
    replaced.op, replaced.attrs["to"] = "Cast", TensorProto.FLOAT16
    other = analyse(graph, Analysis(before.facts, before.steps))
    assert other.facts[reshape.outputs[0].name].dtype == "float16"
    assert_same_facts(other.facts, analyse(graph).facts)


def test_constants_of_equal_values_are_known_once_and_changed_ones_anew() -> None:
    builder, x = one_layer()
    graph = import_graph(
        with_output(builder.op("Mul", x, builder.constant(0.5)), builder, ["batch", "sequence", HIDDEN])
    )
    (scale,) = (item for item in graph.nodes[-2].inputs if isinstance(item, gs.Constant))
    before = analyse(graph)
    assert before[scale].scalar() == 0.5
    elements = before[scale].elements
    assert elements is not None
    with pytest.raises(ValueError, match="read-only"):
        elements[...] = elements
    graph.nodes[-2].inputs = [graph.nodes[-2].inputs[0], gs.Constant(scale.name, np.asarray(2.0, np.float32))]
    assert analyse(graph, before).facts[scale.name].scalar() == 2.0


def test_a_copy_computes_the_same_and_shares_nothing_but_weights() -> None:
    original = Model(random_model(3)[0])
    graph = import_model(original)
    copied = copy_of(graph)
    assert export_model(copied, original).proto == export_model(graph, original).proto
    assert not {id(item) for item in graph.tensors().values()} & {id(item) for item in copied.tensors().values()}
    weights = {name: item for name, item in graph.tensors().items() if isinstance(item, gs.Constant)}
    assert all(copied.tensors()[name]._values is item._values for name, item in weights.items())
    copied.nodes[0].attrs["new"] = 1
    copied.nodes[-1].inputs.clear()
    assert "new" not in graph.nodes[0].attrs
    assert graph.nodes[-1].inputs


def test_wiring_sees_every_change_of_nodes_and_tensors() -> None:
    graph = import_graph(random_model(3)[0])

    def is_noticed(change: str) -> bool:
        copied = copy_of(graph)
        wiring, node = Wiring(copied), copied.nodes[2]
        if change == "node":
            copied.nodes[2] = gs.Node(node.op, node.name, node.attrs, list(node.inputs), list(node.outputs))
        elif change == "order":
            copied.nodes[2], copied.nodes[3] = copied.nodes[3], node
        elif change == "input":
            node.inputs[0] = node.inputs[0].copy()
        elif change == "output":
            copied.outputs[0] = copied.outputs[0].copy()
        elif change == "moved":
            node.inputs.append(node.outputs[0])
            node.outputs.clear()
        return not wiring.is_that_of(copied)

    assert [
        change for change in ("node", "order", "input", "output", "moved", "nothing") if not is_noticed(change)
    ] == ["nothing"]
