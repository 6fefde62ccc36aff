# SPDX-License-Identifier: Apache-2.0
"""Schedules that embeddings, and kernels that take rows of tables, make in addition to their rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.files import Model
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import (
    check_nodes,
    node_attributes,
    set_attribute,
    with_functions,
    without_functions,
)

from tests.support import folding_encoders
from tests.support.messages import for_parser

from .built_models import bert, of, run


def rewrite_model(interface: str = "packed") -> onnx.ModelProto:
    return rewrite(bert(), interface=interface, precision="fp16").model


@pytest.mark.parametrize("max_seq_len", [128, 512])
def test_an_encoders_embedding_makes_the_schedule(max_seq_len: int) -> None:
    model = rewrite_model()
    result = for_parser(model, max_seq_len)
    check_nodes(result)
    onnx.checker.check_model(with_functions(result, "fp16"))
    assert not of(result, "PadfreeSchedule")
    (embedding,) = of(result, "PadfreeEmbedding")
    results = {name: node_attributes(embedding)[name] for name in ("schedules", "has_tasks", "num_heads", "early_ids")}
    assert results == {"schedules": 1, "has_tasks": int(max_seq_len > 128), "num_heads": 2, "early_ids": 0}
    assert embedding.input[-1] == "seq_lens"
    for attention in of(result, "PadfreeAttention"):
        assert set(embedding.output[1:]) <= set(attention.input)
    for a, b in zip(run(with_functions(result, "fp16")), run(model), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)  # the last rows are not rounded to fp16


def test_an_embedding_orders_tasks_for_causal_attention() -> None:
    model = without_functions(rewrite_model())
    for attention in of(model, "PadfreeAttention"):
        set_attribute(attention, "window_right", 0)
    (embedding,) = of(for_parser(model, 512), "PadfreeEmbedding")
    assert node_attributes(embedding)["causal_tasks"] == 1
    (embedding,) = of(for_parser(rewrite_model(), 512), "PadfreeEmbedding")
    assert node_attributes(embedding)["causal_tasks"] == 0


@pytest.mark.parametrize(
    "change", ["has_extent", "has_positions", "ids after the schedule", "positions", "two readers"]
)
def test_what_makes_more_or_comes_late_stays(change: str) -> None:
    """Where two embeddings read one schedule, only the first can take it over."""
    model = without_functions(rewrite_model())
    (schedule,), (embedding,) = of(model, "PadfreeSchedule"), of(model, "PadfreeEmbedding")
    nodes = model.graph.node
    if change == "ids after the schedule":
        nodes.insert(1, helper.make_node("Abs", [embedding.input[0]], ["late"]))
        embedding.input[0] = "late"
    elif change == "has_extent":
        schedule.input.append("seq_lens")
        schedule.output.insert(1, "slots")
        set_attribute(schedule, change, 1)
    elif change == "has_positions":
        schedule.output.insert(1, "places")
        set_attribute(schedule, change, 1)
    elif change == "positions":
        embedding.input.insert(2, "token_type_ids")
        set_attribute(embedding, "has_positions", 1)
    else:
        other = onnx.NodeProto()
        other.CopyFrom(embedding)
        other.output[0], other.name = "other rows", "other"
        nodes.insert(2, other)
    result = for_parser(model, 512)
    check_nodes(result)
    merged = [node_attributes(node)["schedules"] for node in of(result, "PadfreeEmbedding")]
    if change == "two readers":
        assert merged == [1, 0]
        assert not of(result, "PadfreeSchedule")
    else:
        assert merged == [0]
        assert len(of(result, "PadfreeSchedule")) == 1


def test_the_padded_interface_keeps_its_schedule() -> None:
    """Packing the ids needs the schedule's results."""
    result = for_parser(rewrite_model("padded"), 512)
    assert len(of(result, "PadfreeSchedule")) == 1
    assert [node_attributes(node)["schedules"] for node in of(result, "PadfreeEmbedding")] == [0]


def decoder(interface: str = "packed") -> onnx.ModelProto:
    """Two layers whose word rows no norm follows."""
    rewritten = rewrite(folding_encoders.load("qwen3_embedding"), interface=interface, precision="fp16").model
    return with_linear(Model.of(rewritten)).whole()


@pytest.mark.parametrize("max_seq_len", [128, 512])
def test_a_decoders_rows_make_the_schedule(max_seq_len: int) -> None:
    """With positions, and before the first GEMM, which comes before the schedule."""
    model = decoder()
    result = for_parser(model, max_seq_len)
    check_nodes(result)
    onnx.checker.check_model(with_functions(result, "fp16"))
    assert not of(result, "PadfreeSchedule")
    (rows,) = of(result, "PadfreeTokenRows")
    has_tasks = int(max_seq_len > 128)
    names = ("schedules", "has_positions", "has_tasks", "causal_tasks", "has_moments")
    attributes = {"causal_tasks": 0, **node_attributes(rows)}
    assert [attributes[name] for name in names] == [1, 1, has_tasks, has_tasks, 1]
    assert rows.input[-1] == "seq_lens"
    for attention in of(result, "PadfreeAttention"):
        assert node_attributes(attention)["early_lengths"] == 1
        assert set(attention.input) & set(rows.output[2:])
    for a, b in zip(run(with_functions(result, "fp16")), run(with_functions(model, "fp16")), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)  # the last rows are not rounded to fp16


def test_rows_of_the_padded_interface_make_the_schedule() -> None:
    """Their ids are packed by a mask's index."""
    result = for_parser(decoder("padded"), 512)
    check_nodes(result)
    assert not of(result, "PadfreeSchedule")
    assert [node_attributes(node)["schedules"] for node in of(result, "PadfreeTokenRows")] == [1]


@pytest.mark.parametrize("change", ["has_extent", "has_prefix", "late lengths"])
def test_what_rows_cannot_make_stays(change: str) -> None:
    model = without_functions(decoder())
    (schedule,), nodes = of(model, "PadfreeSchedule"), model.graph.node
    if change == "has_extent":
        schedule.input.append("seq_lens")
        schedule.output.insert(1, "slots")
        set_attribute(schedule, change, 1)
    elif change == "has_prefix":
        schedule.input.append("seq_lens")
        set_attribute(schedule, change, 1)
    else:
        at = next(i for i, node in enumerate(nodes) if node.op_type == "PadfreeSchedule")
        nodes.insert(at, helper.make_node("Abs", ["seq_lens"], ["late"]))
        schedule.input[0] = "late"
    result = for_parser(model, 512)
    check_nodes(result)
    assert [node_attributes(node)["schedules"] for node in of(result, "PadfreeTokenRows")] == [0]
    assert len(of(result, "PadfreeSchedule")) == 1
