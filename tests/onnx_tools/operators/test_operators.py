# SPDX-License-Identifier: Apache-2.0
"""Operator descriptions: they are complete, and every wrong node is refused with a message that says what to do."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.operators import DOMAIN, OPERATORS, check_nodes, make_node, node_attributes, set_attribute

from tests.support.samples import PLAIN_ATTENTION, PLAIN_EMBEDDING

ATTENTION = {**PLAIN_ATTENTION, "num_heads": 4, "num_kv_heads": 4, "head_size": 16, "scale": 0.25}


def attention_node(inputs: list[str] | None = None, **changes: object) -> onnx.NodeProto:
    attributes = {key: value for key, value in {**ATTENTION, **changes}.items() if value is not None}
    return helper.make_node("PadfreeAttention", inputs or ["qkv", "cu"], ["y"], name="att", domain=DOMAIN, **attributes)


def model_with(node: onnx.NodeProto) -> onnx.ModelProto:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "g", [], [y]))


def test_every_condition_names_an_attribute() -> None:
    for spec in OPERATORS.values():
        for tensor in (*spec.inputs, *spec.outputs):
            for condition in tensor.conditions:
                attribute = spec.attribute(condition.attribute)
                if condition.values:
                    assert attribute.allowed is not None
                    assert set(condition.values) <= set(attribute.allowed)
                else:
                    assert (attribute.type, attribute.minimum) == ("int", 0)
                assert attribute.selects_body, "an attribute that changes inputs changes the body"


def test_inputs_follow_the_attributes() -> None:
    spec = OPERATORS["PadfreeAttention"]
    names = [tensor.name for tensor in spec.inputs_for({**ATTENTION, "qkv_layout": "separate", "has_qkv_bias": 1})]
    assert names == ["q", "k", "v", "qkv_bias", "cu_seqlens"]
    names = [tensor.name for tensor in spec.inputs_for({**ATTENTION, "has_tasks": 1})]
    assert names == ["qkv", "cu_seqlens", "tasks"]
    assert [tensor.name for tensor in spec.inputs_for(ATTENTION)] == ["qkv", "cu_seqlens"]


def test_good_node_passes_and_make_node_writes_floats_as_floats() -> None:
    check_nodes(model_with(attention_node()))
    node = make_node("PadfreeAttention", ["qkv", "cu"], ["y"], **{**ATTENTION, "scale": 1})
    assert {a.name: a.type for a in node.attribute}["scale"] == onnx.AttributeProto.FLOAT


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (attention_node(head_size=None), ["'att'", "lacks", "'head_size'", "int from 1 to 2147483647", "rewrite"]),
        (attention_node(window=3), ["'att'", "unknown", "'window'", "num_heads", "remove"]),
        (attention_node(scale=1), ["'scale'", "type int", "any float", "write"]),
        (attention_node(num_heads=[1, 2]), ["'num_heads'", "type INTS", "int from 1"]),
        (attention_node(num_heads=0), ["'num_heads' is 0", "from 1"]),
        (attention_node(max_seq_len=2**31), ["'max_seq_len' is 2147483648", "from 0"]),
        (attention_node(scale=float("nan")), ["'scale' is nan"]),
        (attention_node(qkv_layout="HD3"), ["'qkv_layout' is 'HD3'", "'3HD', 'H3D', 'separate'"]),
        (attention_node(has_qkv_bias=2), ["'has_qkv_bias' is 2", "0, 1"]),
        (attention_node(has_qkv_bias=1), ["has 2 inputs", "ask for 3", "qkv, qkv_bias, cu_seqlens"]),
        (attention_node(qkv_layout="separate"), ["has 2 inputs", "ask for 4", "q, k, v, cu_seqlens"]),
        (attention_node(inputs=["qkv", ""]), ["'cu_seqlens' has an empty name"]),
        (helper.make_node("PadfreeConv", ["x"], ["y"], domain=DOMAIN), ["PadfreeConv 'y'", "known are PadfreeIndex"]),
        (helper.make_node("PadfreeIndex", ["m"], ["t", "l"], domain=DOMAIN), ["has 2 outputs", "ask for 3"]),
        (helper.make_node("PadfreePack", ["x", "i"], [""], domain=DOMAIN), ["no named output"]),
    ],
)
def test_wrong_nodes_are_refused(node: onnx.NodeProto, words: list[str]) -> None:
    with pytest.raises(RewriteError) as error:
        check_nodes(model_with(node))
    for word in words:
        assert word in str(error.value)


def test_an_attribute_gets_another_value() -> None:
    node = attention_node()
    before = node_attributes(node)
    set_attribute(node, "max_seq_len", 77)
    set_attribute(node, "bias", "slope")
    assert node_attributes(node) == {**before, "max_seq_len": 77, "bias": "slope"}
    with pytest.raises(ValueError, match="PadfreeAttention 'att' has no attribute 'nothing'"):
        set_attribute(node, "nothing", 1)


def test_positions_need_a_position_table() -> None:
    with pytest.raises(RewriteError, match="has_positions=1 needs has_position_table=1"):
        make_node(
            "PadfreeEmbedding",
            ["ids", "p", "cu", "w", "g"],
            ["y"],
            **{**PLAIN_EMBEDDING, "has_positions": 1},
        )


def test_nodes_inside_subgraphs_are_checked_too() -> None:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    branch = helper.make_graph([attention_node(num_heads=-1)], "branch", [], [y])
    outer = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(RewriteError, match="'num_heads' is -1"):
        check_nodes(model_with(outer))
