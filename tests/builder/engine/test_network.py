# SPDX-License-Identifier: Apache-2.0
"""What happens to a model on its way into TensorRT, and the checks on the engine that comes out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from padfree.builder import BuildError
from padfree.builder.engine.inspection import count_engine_plugins, layer_names
from padfree.builder.engine.lowering import bound_max_seqlen, name_plugin_nodes, set_max_seq_len
from padfree.builder.engine.network import check_plugin_layers, needed_plugin_names, parse, plugin_node_names
from padfree.onnx_tools import rewrite

from tests.support.encoder import HIDDEN, EncoderBuilder
from tests.support.messages import for_parser, leave, lower


def model_of(*names_and_ops: tuple[str, str]) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, ["x"], [f"y{at}"], name=name, domain="padfree" if op.startswith("Padfree") else "")
        for at, (name, op) in enumerate(names_and_ops)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T"])
    return helper.make_model(helper.make_graph(nodes, "g", [x], [x]))


def test_plugin_nodes_get_names_of_their_own() -> None:
    model = model_of(
        ("", "PadfreePool"), ("same", "PadfreePool"), ("same", "Relu"), ("own", "PadfreePack"), ("", "Relu")
    )
    lower(name_plugin_nodes, model)
    names = plugin_node_names(model)
    assert sorted(names.values()) == ["PadfreePack", "PadfreePool", "PadfreePool"]
    assert names["own"] == "PadfreePack"
    assert "same" not in names
    assert "" not in names


def test_names_never_collide_with_those_that_were_there() -> None:
    model = model_of(("PadfreePool_1", "Relu"), ("a", "PadfreePack"), ("", "PadfreePool"))
    lower(name_plugin_nodes, model)
    assert len({node.name for node in model.graph.node}) == 3


def test_the_longest_sequence_reaches_the_attention_nodes_alone() -> None:
    model = model_of(("a", "PadfreeAttention"), ("b", "Relu"))
    for node in model.graph.node:
        node.attribute.append(helper.make_attribute("max_seq_len", 0))
    lower(set_max_seq_len, model, 384)
    assert [node.attribute[0].i for node in model.graph.node] == [384, 0]


@pytest.mark.parametrize(("given", "expected"), [(1, 2), (2, 2), (3, 3), (16, 16), (40, 16)])
def test_the_padded_axis_is_two_to_the_longest_sequence(given: int, expected: int) -> None:
    max_seqlen = helper.make_tensor_value_info("max_seqlen", TensorProto.INT32, ["S"])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [1])
    node = helper.make_node("Shape", ["max_seqlen"], ["shape"])
    model = helper.make_model(helper.make_graph([node], "g", [max_seqlen], [shape]))
    lower(bound_max_seqlen, model, 16)
    onnx.checker.check_model(model)
    (actual,) = ReferenceEvaluator(model).run(None, {"max_seqlen": np.zeros(given, np.int32)})
    assert actual.tolist() == [expected]


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("x", TensorProto.FLOAT, "an input"),
        ("labels", TensorProto.STRING, "texts"),
    ],
)
def test_outputs_that_no_engine_has(name: str, kind: int, what: str) -> None:
    values = [helper.make_tensor_value_info(item, TensorProto.FLOAT, [1]) for item in ("x", "y")]
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Constant", [], ["labels"], value_strings=[b"no"]),
    ]
    outputs = [values[1], helper.make_tensor_value_info(name, kind, [1])]
    model = helper.make_model(helper.make_graph(nodes, "g", [values[0]], outputs))
    with pytest.raises(BuildError, match=f"output '{name}' is {what}, which an engine cannot give out"):
        for_parser(model, 8)
    del model.graph.output[1:]
    assert [value.name for value in for_parser(model, 8).graph.output] == ["y"]


def test_an_input_of_that_name_with_a_batch_is_another() -> None:
    ids = helper.make_tensor_value_info("max_seqlen", TensorProto.INT64, ["B", "S"])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    node = helper.make_node("Shape", ["max_seqlen"], ["shape"])
    model = helper.make_model(helper.make_graph([node], "g", [ids], [shape]))
    lower(leave, model)
    before = model.SerializeToString()
    lower(bound_max_seqlen, model, 16)
    assert model.SerializeToString() == before


def test_scatters_that_reduce_nothing_do_not_say_so() -> None:
    kinds = ("none", "add")
    nodes = [helper.make_node("ScatterND", ["x", "i", "y"], [kind], reduction=kind) for kind in kinds]
    outputs = [helper.make_tensor_value_info(kind, TensorProto.FLOAT, ["B", 4]) for kind in kinds]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs), opset_imports=[helper.make_opsetid("", 17)])
    rewritten = for_parser(model, 16)
    assert [[item.s for item in node.attribute] for node in rewritten.graph.node if node.op_type == "ScatterND"] == [
        [], [b"add"],
    ]  # fmt: skip


def test_a_model_without_a_padded_axis_is_not_changed() -> None:
    model = model_of(("a", "PadfreePool"))
    lower(leave, model)
    before = model.SerializeToString()
    lower(bound_max_seqlen, model, 16)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    "layers", [["attention", "MatMul"], [{"Name": "attention", "LayerType": "PluginV3"}, {"Name": "MatMul"}]]
)
def test_layer_names_at_either_verbosity(layers: list[Any]) -> None:
    assert layer_names(json.dumps({"Layers": layers})) == ["attention", "MatMul"]


@pytest.mark.parametrize("text", ["", "[]", '{"Layers": [{"LayerType": "x"}]}'])
def test_unreadable_layer_information(text: str) -> None:
    with pytest.raises(BuildError, match="engine inspector gave something unreadable"):
        layer_names(text)


def test_engines_without_their_plugins_are_refused() -> None:
    wanted = {"a": "PadfreeAttention", "b": "PadfreeAttention", "c": "PadfreePool"}
    assert count_engine_plugins(["x", "c", "b", "a"], wanted) == {"PadfreeAttention": 2, "PadfreePool": 1}
    with pytest.raises(BuildError, match=r"lacks 1 of 3 plugin layers, first b \(PadfreeAttention\)"):
        count_engine_plugins(["a", "c", "{ForeignNode[b]}"], wanted)


def test_networks_without_their_plugins_are_refused() -> None:
    trt = SimpleNamespace(__version__="10.6.0", LayerType=SimpleNamespace(PLUGIN_V3="plugin"))
    layers = [SimpleNamespace(name="a", type="plugin"), SimpleNamespace(name="b", type="constant")]
    network = SimpleNamespace(num_layers=2, get_layer=lambda index: layers[index])
    check_plugin_layers(trt, network, {"a": "PadfreePool"})
    with pytest.raises(BuildError, match=r"made no plugin layer of 1 nodes, first b \(PadfreePack\)"):
        check_plugin_layers(trt, network, {"a": "PadfreePool", "b": "PadfreePack"})


def test_a_plugin_whose_shape_alone_is_read_may_go() -> None:
    nodes = [
        helper.make_node("PadfreeUnpack", ["x"], ["wide"], name="unpack", domain="padfree"),
        helper.make_node("Shape", ["wide"], ["shape"]),
        helper.make_node("PadfreePack", ["x"], ["packed"], name="pack", domain="padfree"),
        helper.make_node("Reshape", ["packed", "shape"], ["y"]),
        helper.make_node("PadfreePool", ["x"], ["nobody"], name="pool", domain="padfree"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]))
    assert set(plugin_node_names(model)) == {"unpack", "pack", "pool"}
    assert needed_plugin_names(model) == {"pack": "PadfreePack"}


def test_parser_errors_name_node_operator_and_next_step() -> None:
    error = SimpleNamespace(node_name=lambda: "head", node_operator=lambda: "PadfreePool", desc=lambda: "no creator")
    parser = SimpleNamespace(parse=lambda _content: False, num_errors=1, get_error=lambda _index: error)
    trt = SimpleNamespace(__version__="10.6.0", OnnxParser=lambda _network, _logger: parser)
    with pytest.raises(BuildError) as caught:
        parse(trt, SimpleNamespace(errors=["plugin: mode 'x' is unknown"]), None, model_of(("head", "PadfreePool")))
    for part in ("node 'head' (PadfreePool): no creator", "the plugin library lacks it", "mode 'x'", "padfree doctor"):
        assert part in str(caught.value)


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_heads_that_no_kernel_takes(interface: str) -> None:
    """16 columns in heads of 4 or of 8: the file is rewritten either way, but engines refuse heads of 4."""
    for heads, refused in ((4, True), (2, False)):
        b = EncoderBuilder()
        b.op("Identity", b.layer(b.embedding(), b.padding_mask(), heads), output="hidden")
        model = rewrite(b.model({"hidden": ["batch", "sequence", HIDDEN]}), interface=interface).model
        if refused:
            with pytest.raises(BuildError, match=r"heads of 4 columns; engines take 8 to 256, in multiples of 8; run"):
                for_parser(model, 16)
        else:
            for_parser(model, 16)
