# SPDX-License-Identifier: Apache-2.0
"""What attention and embeddings may read while the kernel before them runs."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools import rewrite, synthetic
from padfree.onnx_tools.operators import check_nodes, make_node, node_attributes, padfree_nodes

from tests.support.messages import for_parser
from tests.support.samples import PLAIN_ATTENTION, PLAIN_EMBEDDING, PLAIN_NORM


def early(model: onnx.ModelProto) -> list[object]:
    """The attributes `early_ids` of embeddings and `early_lengths` of attention, in order."""
    check_nodes(model)
    names = {"PadfreeEmbedding": "early_ids", "PadfreeAttention": "early_lengths"}
    nodes = [node for node in padfree_nodes(model.graph) if node.op_type in names]
    return [node_attributes(node)[names[node.op_type]] for node in nodes]


@pytest.mark.parametrize(("interface", "first"), [("packed", 0), ("padded", 1)])
def test_every_layer_of_an_encoder_reads_lengths_early(interface: str, first: int) -> None:
    """The packed interface's embedding makes the lengths; the first attention follows no kernel of padfree's."""
    model = rewrite(synthetic.bert_model(2, 64, 2, 128, 100), interface=interface, precision="fp16").model
    assert early(model) == [0, 0, 0]
    parsed = for_parser(model, 512)
    assert early(parsed) == [0, first, 1]


def attention_of(nodes: list[onnx.NodeProto], qkv: str, cu_seqlens: str) -> onnx.ModelProto:
    """A model of one attention node, after the given nodes, with inputs x [T, 24] and cu [B+1]."""
    own = {"head_size": 8, "scale": 1.0, "num_heads": 1, "num_kv_heads": 1}
    attention = make_node("PadfreeAttention", [qkv, cu_seqlens], ["y"], name="a", **{**PLAIN_ATTENTION, **own})
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["T", 24]),
        helper.make_tensor_value_info("cu", TensorProto.INT32, ["B"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["T", 8])
    gamma = helper.make_tensor("gamma", TensorProto.FLOAT16, [24], [1.0] * 24)
    return helper.make_model(helper.make_graph([*nodes, attention], "g", inputs, [output], [gamma]))


def norm(x: str, y: str) -> onnx.NodeProto:
    return make_node("PadfreeLayerNorm", [x, "gamma"], [y], name=y, **PLAIN_NORM)


CASES = {
    "inputs, with a kernel between": ([norm("x", "n")], "n", "cu", 1),
    "inputs alone: what wrote them may be the kernel ahead": ([], "x", "cu", 0),
    "tokens that a kernel makes of an input": ([helper.make_node("Abs", ["x"], ["n"])], "n", "cu", 0),
    "lengths that are made beside the tokens": (
        [norm("x", "n"), helper.make_node("Abs", ["cu"], ["own"])],
        "n",
        "own",
        0,
    ),
    "lengths that tokens are made of": (
        [
            helper.make_node("Abs", ["cu"], ["own"]),
            helper.make_node("Cast", ["own"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("ReduceSum", ["half"], ["total"], keepdims=1),
            helper.make_node("Add", ["x", "total"], ["sum"]),
            norm("sum", "n"),
            helper.make_node("Identity", ["n"], ["same"]),
        ],
        "same",
        "own",
        1,
    ),
    "a kernel ahead of what lengths are made of": (
        [
            norm("x", "n"),
            helper.make_node("Abs", ["cu"], ["own"]),
            helper.make_node("Cast", ["own"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("ReduceSum", ["half"], ["total"], keepdims=1),
            helper.make_node("Add", ["n", "total"], ["sum"]),
        ],
        "sum",
        "own",
        0,
    ),
    "a kernel of constants": ([norm("constant", "n"), helper.make_node("Add", ["x", "n"], ["sum"])], "sum", "cu", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_only_where_another_kernel_stands_between(name: str) -> None:
    nodes, qkv, cu_seqlens, expected = CASES[name]
    assert early(for_parser(attention_of(nodes, qkv, cu_seqlens), 512)) == [expected]


@pytest.mark.parametrize(("of_lengths", "expected"), [("ids", 1), ("x", 0)])
def test_ids_are_early_where_lengths_are_made_after_them(of_lengths: str, expected: int) -> None:
    """A schedule reads only the number of ids; one that takes another tensor may run before the ids are made."""
    flags = {"has_extent": 0, "has_positions": 1, "has_tasks": 0, "num_heads": 1}
    nodes = [
        helper.make_node("Abs", ["x"], ["ids"]),
        make_node("PadfreeSchedule", ["lens", of_lengths], ["cu", "places"], name="s", **flags),
        make_node("PadfreeEmbedding", ["ids", "cu", "table", "gamma"], ["y"], name="e", **PLAIN_EMBEDDING),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [None]) for name in ("x", "lens")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [None, 8])
    items = [helper.make_tensor("table", TensorProto.FLOAT16, [3, 8], [1.0] * 24)]
    items.append(helper.make_tensor("gamma", TensorProto.FLOAT16, [8], [1.0] * 8))
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [output], items))
    assert early(for_parser(model, 512)) == [expected]
