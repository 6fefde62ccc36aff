# SPDX-License-Identifier: Apache-2.0
"""Schedules that embeddings make in addition to their rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.operators import (
    check_nodes,
    node_attributes,
    set_attribute,
    with_functions,
    without_functions,
)

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
