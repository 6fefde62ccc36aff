# SPDX-License-Identifier: Apache-2.0
"""Which engines do without the Hopper attention kernel's task lists."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from padfree.builder.engine.lowering.task_lists import NARROW_HEADS, SHORT_LENGTH
from padfree.builder.engine.network import needed_plugin_names
from padfree.onnx_tools.operators import check_nodes, make_node, node_attributes

from tests.support.messages import for_parser
from tests.support.samples import PLAIN_ATTENTION

ROOT = Path(__file__).parents[3]
LAYER = {**PLAIN_ATTENTION, "head_size": 8, "scale": 1.0}


def two_layers(**attributes: int) -> onnx.ModelProto:
    """Attention of 2 heads, of 4 heads with a list from a second schedule, and a layer that never had a list.

    attributes: of the attention of 4 heads.
    """

    def attention(name: str, qkv: str, lists: list[str], heads: int) -> onnx.NodeProto:
        inputs = [qkv, "sums", *lists]
        own = {"num_heads": heads, "num_kv_heads": heads, "has_tasks": len(lists), **(attributes if heads == 4 else {})}
        return make_node("PadfreeAttention", inputs, [name], name=name, **{**LAYER, **own})

    schedule = {"has_extent": 0, "has_positions": 0, "has_tasks": 1}
    nodes = [
        make_node("PadfreeSchedule", ["lens", "ids"], ["sums", "list2"], name="first", num_heads=2, **schedule),
        make_node("PadfreeSchedule", ["lens", "ids"], ["unread", "list4"], name="second", num_heads=4, **schedule),
        attention("a", "qkv2", ["list2"], 2),
        attention("b", "qkv4", ["list4"], 4),
        attention("c", "qkv2", [], 2),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [None]) for name in ("lens", "ids")]
    inputs += [helper.make_tensor_value_info(f"qkv{h}", TensorProto.FLOAT16, [None, None]) for h in (2, 4)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [None, None]) for name in "abc"]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs))


@pytest.mark.parametrize("max_seq_len", [1, SHORT_LENGTH])
def test_engines_of_short_sequences_make_no_lists(max_seq_len: int) -> None:
    model = for_parser(two_layers(), max_seq_len)
    check_nodes(model)
    assert not any(node_attributes(node)["has_tasks"] for node in model.graph.node)
    assert {name for node in model.graph.node for name in (*node.input, *node.output)}.isdisjoint({"list2", "list4"})
    assert sorted(needed_plugin_names(model)) == ["a", "b", "c", "first"]


def test_engines_of_longer_sequences_keep_them() -> None:
    model = for_parser(two_layers(), SHORT_LENGTH + 1)
    check_nodes(model)
    assert [node_attributes(node)["has_tasks"] for node in model.graph.node] == [1, 1, 1, 1, 0]
    assert sorted(needed_plugin_names(model)) == ["a", "b", "c", "first", "second"]


def test_attention_with_wide_heads_has_no_list() -> None:
    model = for_parser(two_layers(head_size=136), 512)
    check_nodes(model)
    assert [node_attributes(node)["has_tasks"] for node in model.graph.node] == [1, 0, 1, 0, 0]
    assert sorted(needed_plugin_names(model)) == ["a", "b", "c", "first"]


@pytest.mark.parametrize(("right", "causal"), [(0, [0, 1]), (-1, [0, 0]), (1, [0, 0])])
def test_lists_that_causal_attention_alone_reads_are_ordered_for_it(right: int, causal: list[int]) -> None:
    model = for_parser(two_layers(window_right=right), 512)
    check_nodes(model)
    assert [node_attributes(node).get("causal_tasks", 0) for node in model.graph.node][:2] == causal


def test_builder_and_kernels_mean_the_same_sizes() -> None:
    header = (ROOT / "plugins" / "attention" / "kernels.h").read_text("utf-8")
    (length,) = re.findall(r"kShortLength = (\d+);", header)
    (head_size,) = re.findall(r"kMaxHopperHeadSize = (\d+)\D", header)
    assert (int(length), int(head_size)) == (SHORT_LENGTH, NARROW_HEADS)
