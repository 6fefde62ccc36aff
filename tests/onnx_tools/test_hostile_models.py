# SPDX-License-Identifier: Apache-2.0
"""Broken and malicious graphs: an error that names the problem, quickly and with little memory, or a right result."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, RewriteError, rewrite
from padfree.onnx_tools.files.model_file import MOST_NODES, open_model

from tests.support.encoder import HIDDEN, one_layer

HUGE = 1 << 40
SECONDS, BYTES = 10.0, 1 << 30  # seconds of processor time here and below: the machine may have other work
CHAIN_SECONDS = 60.0  # it takes about ten


def encoder() -> ModelProto:
    builder, hidden = one_layer()
    builder.op("Identity", hidden, output="y")
    return builder.model({"y": ["batch", "sequence", HIDDEN]})


def node_of(model: ModelProto, op: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op)


def add_constant(model: ModelProto, values: list[int]) -> str:
    name = f"hostile{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
    return name


def append(model: ModelProto, op: str, *inputs: str, **attributes: object) -> None:
    """Adds an operator's result to the output."""
    model.graph.node.append(helper.make_node(op, inputs, ["extra"], **attributes))
    node_of(model, "Identity").output[0] = "inner"
    model.graph.node.append(helper.make_node("Add", ["inner", "extra"], ["y"]))


def cycle(model: ModelProto) -> None:
    node_of(model, "LayerNormalization").input[0] = "y"


def dangling(model: ModelProto) -> None:
    node_of(model, "Softmax").input[0] = "nothing"


def twice(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["input_ids"], [node_of(model, "Softmax").output[0]]))


def two_weights_of_one_name(model: ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def wrong_type(model: ModelProto) -> None:
    node_of(model, "Softmax").input[0] = "input_ids"


def wrong_width(model: ModelProto) -> None:
    node = node_of(model, "MatMul")
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    tensor.CopyFrom(numpy_helper.from_array(np.ones((7, 5), np.float32), tensor.name))


def short_data(model: ModelProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    tensor.dims[0] = HUGE


def negative_size(model: ModelProto) -> None:
    next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2).dims[0] = -3


def unknown_operator(model: ModelProto) -> None:
    node_of(model, "Softmax").op_type = "Softmaxx"


def huge_constant(model: ModelProto) -> None:
    append(model, "ConstantOfShape", add_constant(model, [1 << 32, 1 << 32]))


def huge_expand(model: ModelProto) -> None:
    append(model, "Expand", model.graph.initializer[0].name, add_constant(model, [HUGE, HUGE, 1, 1]))


def huge_range(model: ModelProto) -> None:
    limits = [add_constant(model, [value]) for value in (0, HUGE, 1)]
    names = []
    for item in limits:
        model.graph.node.append(helper.make_node("Squeeze", [item], [f"{item}_number"]))
        names.append(f"{item}_number")
    model.graph.node.append(helper.make_node("Range", names, ["steps"]))
    append(model, "Cast", "steps", to=TensorProto.FLOAT)


def huge_plain_range(model: ModelProto) -> None:
    """A Range whose numbers shape inference would write out."""
    names = [f"plain{index}" for index in range(3)]
    for name, value in zip(names, (0, HUGE, 1), strict=True):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
    model.graph.node.append(helper.make_node("Range", names, ["numbers"]))
    model.graph.node.append(helper.make_node("Cast", ["numbers"], ["floats"], to=TensorProto.FLOAT))
    append(model, "ReduceSum", "floats", keepdims=0)


def deep_sum(model: ModelProto) -> None:
    """A chain of a few thousand nodes, which no recursion may fail on."""
    name = "input_ids"
    for count in range(3000):
        model.graph.node.append(helper.make_node("Add", [name, name], [f"deep{count}"]))
        name = f"deep{count}"
    model.graph.node.append(helper.make_node("Unsqueeze", [name, add_constant(model, [2])], ["deep"]))
    append(model, "Cast", "deep", to=TensorProto.FLOAT)


@pytest.mark.parametrize(
    "spoil",
    [cycle, dangling, twice, two_weights_of_one_name, wrong_type, wrong_width, short_data, negative_size,
     unknown_operator, huge_constant, huge_expand, huge_range, huge_plain_range],
)  # fmt: skip
def test_error_in_bounded_time(spoil: Callable[[ModelProto], None]) -> None:
    model = encoder()
    spoil(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.process_time()
    with pytest.raises(RewriteError) as caught:
        rewrite(model)
    assert len(str(caught.value)) > 30
    assert time.process_time() - started < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < BYTES


@pytest.mark.slow
def test_a_long_chain_is_verified_in_bounded_time() -> None:
    """onnxruntime's memory planner takes time by the square of the length: nine seconds per session for 4,000 nodes."""
    model, name = encoder(), "inner"
    node_of(model, "Identity").output[0] = name
    for count in range(6000):
        model.graph.node.append(helper.make_node("Tanh", [name], [f"chain{count}"]))
        name = f"chain{count}"
    model.graph.node.append(helper.make_node("Identity", [name], ["y"]))
    started = time.process_time()
    rewrite(model)
    assert time.process_time() - started < CHAIN_SECONDS / 2


@pytest.mark.slow
def test_a_doubling_chain_is_rewritten_in_bounded_time() -> None:
    """Followed as a tree, the sum would have 2^3000 leaves."""
    model = encoder()
    deep_sum(model)
    started = time.process_time()
    rewrite(model)
    assert time.process_time() - started < CHAIN_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["in the graph", "in a subgraph"])
def test_a_model_of_too_many_nodes_is_refused_at_once(tmp_path: Path, inside: bool) -> None:
    chain = [helper.make_node("Neg", [f"t{at}"], [f"t{at + 1}"]) for at in range(MOST_NODES + 1)]
    value, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("t0", chain[-1].output[0]))
    graph = helper.make_graph(chain, "chain", [value], [last])
    if inside:
        branch = helper.make_graph(chain, "branch", [], [last])
        choice = helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch)
        graph = helper.make_graph([choice], "outer", [value], [helper.make_tensor_value_info("out", 1, [1])])
    path = tmp_path / "chain.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    start = time.process_time()
    with pytest.raises(ModelFileError, match=f"nodes or more, allowed: {MOST_NODES}"):
        open_model(path)
    assert time.process_time() - start < 2 * SECONDS
