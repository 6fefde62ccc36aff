# SPDX-License-Identifier: Apache-2.0
"""Graphs that exporters seldom write: lists of tensors, other types, branches and loops, random numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, rewrite

from tests.support import exports
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output

from .agreement import INTERFACES, assert_agree

both = pytest.mark.parametrize("interface", INTERFACES)
Tail = Callable[[EncoderBuilder, str], str]


def node(builder: EncoderBuilder, op: str, inputs: list[str], outputs: list[str], **attributes: object) -> str:
    builder.nodes.append(helper.make_node(op, inputs, outputs, name=op, **attributes))
    return outputs[0]


def branch(op: str, x: str) -> GraphProto:
    """A subgraph that uses the same names inside as every other one."""
    return helper.make_graph(
        [helper.make_node(op, [x], ["inside"])], op, [], [helper.make_tensor_value_info("inside", 1, None)]
    )


def integers(builder: EncoderBuilder, *values: int) -> str:
    return builder.constant(values[0] if len(values) == 1 else values, np.int64)


def split(axis: int, sizes: tuple[int, ...] | None, positions: tuple[int, ...], **attributes: int) -> Tail:
    """Parts of a list, joined in a different order."""

    def tail(builder: EncoderBuilder, x: str) -> str:
        inputs = [x] if sizes is None else [x, integers(builder, *sizes)]
        node(builder, "SplitToSequence", inputs, ["list"], axis=axis, **attributes)
        parts = [builder.op("SequenceAt", "list", integers(builder, index)) for index in positions]
        if not attributes.get("keepdims", 1):
            parts = [builder.op("Unsqueeze", part, builder.axes(2)) for part in parts]
        part = builder.op("Concat", *parts, axis=2)
        return builder.op("MatMul", part, builder.weight(TAIL_WIDTHS[sizes] * len(positions), HIDDEN))

    return tail


TAIL_WIDTHS = {(8,): 8, (4, 4, 8): 4, None: 1}


def whole(builder: EncoderBuilder, x: str) -> str:
    node(builder, "SplitToSequence", [x, integers(builder, 5)], ["list"], axis=2)
    return builder.op("ConcatFromSequence", "list", axis=2)


def build(builder: EncoderBuilder, x: str) -> str:
    node(builder, "SequenceConstruct", [x, builder.op("Relu", x)], ["list"])
    stacked = builder.op("ConcatFromSequence", "list", axis=3, new_axis=1)
    return builder.op(
        "Add",
        builder.op("ReduceMax", stacked, axes=[3], keepdims=0),
        builder.op("SequenceAt", "list", integers(builder, -1)),
    )


def choose(op: str) -> Tail:
    """Depends on the tokens' width, which is known."""

    def tail(builder: EncoderBuilder, x: str) -> str:
        width = builder.op("Gather", builder.op("Shape", x), integers(builder, 2), axis=0)
        condition = builder.op(op, width, integers(builder, HIDDEN))
        return node(builder, "If", [condition], ["y0"], then_branch=branch("Relu", x), else_branch=branch("Neg", x))

    return tail


def nest(builder: EncoderBuilder, x: str) -> str:
    yes = builder.constant(True, np.bool_)
    inner = helper.make_node("If", [yes], ["inside"], then_branch=branch("Relu", x), else_branch=branch("Neg", x))
    outer = helper.make_graph([inner], "outer", [], [helper.make_tensor_value_info("inside", 1, None)])
    return node(builder, "If", [yes], ["y0"], then_branch=outer, else_branch=branch("Identity", x))


def drop(builder: EncoderBuilder, x: str) -> str:
    return builder.op("Dropout", x, builder.constant(0.5), builder.constant(False, np.bool_))


TAILS: dict[str, Tail] = {
    "SplitToSequence": split(2, (8,), (1, 0)),
    "SplitToSequence, sizes": split(2, (4, 4, 8), (1, -3)),
    "SplitToSequence, from the end": split(-1, (8,), (-2,)),
    "SplitToSequence, ones": split(2, None, (3, -1)),
    "SplitToSequence, columns": split(2, None, (3, -1), keepdims=0),
    "split and joined": whole,
    "SequenceConstruct": build,
    "Optional": lambda b, x: b.op("OptionalGetElement", b.op("Optional", x)),
    "If, Equal": choose("Equal"),
    "If, Less": choose("Less"),
    "If in If": nest,
    "If that gives out what it reads": lambda b, x: node(
        b, "If", [b.constant(True, np.bool_)], ["y0"], then_branch=branch("Identity", x), else_branch=branch("Neg", x)
    ),
    "Dropout, not training": drop,
}


@both
@pytest.mark.parametrize("name", TAILS)
def test_tails(name: str, interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(TAILS[name](builder, hidden), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result, tolerance=1e-4)


def test_a_list_that_is_read_at_an_unknown_index() -> None:
    builder, hidden = one_layer()
    node(builder, "SplitToSequence", [hidden, integers(builder, 8)], ["list"], axis=2)
    index = builder.op(
        "Sub",
        builder.op("Gather", builder.op("Shape", "input_ids"), integers(builder, 1), axis=0),
        builder.op("Gather", builder.op("Shape", "input_ids"), integers(builder, 1), axis=0),
    )
    index = builder.op("ReduceMin", builder.op("Mul", "input_ids", index), keepdims=0)
    model = with_output(builder.op("SequenceAt", "list", index), builder, ["batch", "sequence", 8])
    with pytest.raises(RewriteError, match=r"\(SequenceAt\) makes a tensor of unknown sizes"):
        rewrite(model)


@both
@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT64])
def test_other_integers(kind: int, interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    model.graph.input[1].type.tensor_type.elem_type = kind
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


@both
def test_inputs_of_unknown_rank(interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    assert_agree(model, rewrite(model, interface=interface, strict=True))


def convert_to_double(model: ModelProto) -> ModelProto:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for item in model.graph.node:
        for attribute in item.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


@both
def test_double_precision_becomes_single(interface: str) -> None:
    builder, hidden = one_layer()
    model = convert_to_double(with_output(hidden, builder, TOKENS))
    result = rewrite(model, interface=interface, strict=True)
    assert result.model.graph.output[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    assert_agree(model, result)


@both
def test_weights_in_double_become_single(interface: str) -> None:
    """Scores and values are cast to double for the Softmax and the sum, as careful code does; weights are float32."""
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    nodes = list(model.graph.node)
    softmax = next(item for item in nodes if item.op_type == "Softmax")
    product = next(item for item in nodes if softmax.output[0] in item.input)
    for node_in_double, which in ((softmax, 0), (product, 1)):
        name = f"{node_in_double.input[which]}_double"
        cast = helper.make_node("Cast", [node_in_double.input[which]], [name], name=name, to=TensorProto.DOUBLE)
        node_in_double.input[which] = name
        nodes.insert(nodes.index(node_in_double), cast)
    single = helper.make_node("Cast", ["product_double"], [product.output[0]], name="single", to=TensorProto.FLOAT)
    nodes.insert(nodes.index(product) + 1, single)
    product.output[0] = "product_double"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    result = rewrite(model, interface=interface, strict=True)
    types = [attribute.i for item in result.model.graph.node for attribute in item.attribute if attribute.name == "to"]
    assert TensorProto.DOUBLE not in types
    assert_agree(model, result)


@both
def test_texts_as_output(interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    model.graph.node.append(helper.make_node("Constant", [], ["labels"], value_strings=[b"no", b"yes"]))
    model.graph.output.append(helper.make_tensor_value_info("labels", TensorProto.STRING, [2]))
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.outputs["labels"] == "constant"
    feeds = {"input_ids": np.ones((1, 3), np.int64), "attention_mask": np.ones((1, 3), np.int64)}
    if interface == "packed":
        feeds = {"input_ids": np.ones(3, np.int32), "seq_lens": np.asarray([3], np.int32)}
    assert exports.session(result.model).run(["labels"], feeds)[0].tolist() == ["no", "yes"]


def loop(builder: EncoderBuilder, x: str) -> str:
    values = [("i", 7, []), ("go", 9, []), ("v", 1, None)]
    body = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["w"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(*value) for value in values],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("w", 1, None)],
    )
    return node(builder, "Loop", [integers(builder, 3), builder.constant(True, np.bool_), x], ["y0"], body=body)


def by_length(builder: EncoderBuilder, x: str) -> str:
    length = builder.op("Gather", builder.op("Shape", x), integers(builder, 1), axis=0)
    condition = builder.op("Equal", length, integers(builder, 1), output="is_one")
    return node(builder, "If", [condition], ["y0"], then_branch=branch("Relu", x), else_branch=branch("Neg", x))


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (loop, r"node 'Loop' \(Loop\) runs a subgraph again and again"),
        (by_length, r"node 'If' \(If\) chooses between subgraphs by 'is_one', which depends on the inputs"),
        (lambda b, x: b.op("Add", x, b.op("RandomNormalLike", x)), r"\(RandomNormalLike\) draws random numbers"),
        (
            lambda b, x: b.op("Dropout", x, b.constant(0.5), b.constant(True, np.bool_)),
            r"\(Dropout\) draws random numbers: .* export the model for inference",
        ),
        (
            lambda b, x: b.op("Slice", x, b.axes(1), b.axes(1 << 30), b.axes(1)),
            r"\(Slice\) makes S - 1 slots of sequences of S, and nobody can tell which of them are padding",
        ),
    ],
)
def test_graphs_are_refused_with_a_reason(tail: Tail, reason: str) -> None:
    builder, hidden = one_layer()
    model = with_output(tail(builder, hidden), builder, TOKENS)
    with pytest.raises(RewriteError, match=reason):
        rewrite(model)


def test_nodes_in_another_order() -> None:
    """As onnxruntime's conversion to float16 leaves them, with casts at the end."""
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    result = rewrite(model)
    assert result.report.complete
    assert_agree(model, result)


def test_an_original_that_fails() -> None:
    """Its sizes do not match, which only a run shows."""
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    model.graph.node[5].input[0] = model.graph.node[9].output[0]
    with pytest.raises(RewriteError, match=r"if the original fails the same way, .* export it again"):
        rewrite(model)


class WeightOnly(EncoderBuilder):
    """Linear layers whose weights are integers with scales: one for each column, or 4 bits in blocks."""

    bits = 8

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        values = np.rint(self._rng.standard_normal((inputs, outputs)) * (2 if self.bits == 4 else 20))
        if self.bits == 4:
            name = f"w{len(self.constants)}"
            whole = np.clip(values, -8, 7).astype(int).reshape(-1).tolist()
            self.constants.append(helper.make_tensor(name, TensorProto.INT4, [inputs, outputs], whole))
            scale = self.constant(np.full((inputs // 8, outputs), 0.2))
            weight = self.op("DequantizeLinear", name, scale, axis=0, block_size=8)
        else:
            scale, zero = self.constant(np.linspace(0.01, 0.03, outputs)), self.constant(np.zeros(outputs), np.int8)
            weight = self.op("DequantizeLinear", self.constant(values, np.int8), scale, zero, axis=1)
        return self.op("Add", self.op("MatMul", x, weight), self.weight(outputs))


class FourBits(WeightOnly):
    bits = 4


@both
@pytest.mark.parametrize("kind", [WeightOnly, FourBits])
def test_weights_of_integers(kind: type[WeightOnly], interface: str) -> None:
    builder = kind()
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    builder.op("Identity", hidden, output="y")
    model = builder.model({"y": TOKENS}, opset=21)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result, tolerance=1e-4)
    for precision in ("fp16", "bf16"):
        half = rewrite(model, interface=interface, precision=precision, strict=True).model
        kinds = {tensor.data_type for tensor in half.graph.initializer}
        assert kinds >= {TensorProto.INT4 if kind is FourBits else TensorProto.INT8}


@both
def test_bytes_of_tokens_go_through_int32(interface: str) -> None:
    """PadfreePack and PadfreeUnpack take no bytes: what stays padded and is quantised is cast around them."""
    builder, hidden = one_layer()
    scale, zero = builder.constant(0.05), builder.constant(3, np.uint8)
    steps = builder.op("QuantizeLinear", hidden, scale, zero)
    weight = builder.constant(np.arange(HIDDEN * HIDDEN).reshape(HIDDEN, HIDDEN) % 100 - 50, np.int8)
    of_weight = [builder.constant(0.01), builder.constant(0, np.int8)]
    of_result = [builder.constant(0.1), builder.constant(100, np.uint8)]
    output = builder.op("QLinearMatMul", steps, scale, zero, weight, *of_weight, *of_result)
    model = with_output(builder.op("DequantizeLinear", output, *of_result), builder, TOKENS)
    for precision in ("fp32", "fp16", "bf16"):
        result = rewrite(model, interface=interface, precision=precision, verify=False)
        types = {item.name: item.type.tensor_type.elem_type for item in result.model.graph.value_info}
        for item in result.model.graph.node:
            if item.op_type in ("PadfreePack", "PadfreeUnpack"):
                assert types.get(item.input[0], TensorProto.INT32) not in (TensorProto.UINT8, TensorProto.INT8)
        if precision == "fp32":
            assert_agree(model, result, tolerance=0.21)  # one step more or less


def with_function(name: str, attributes: dict[str, float] | None, opset: int, **original: float) -> ModelProto:
    """A model whose last node calls a function of its own, with a default for its attribute, in a given opset."""
    builder, hidden = one_layer()
    node(builder, "F", [hidden], ["y0"], domain="own", **original)
    builder.op("Identity", "y0", output="y")
    inner = helper.make_node(name, ["x"], ["z"])
    if attributes is not None:
        inner.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    defaults = [helper.make_attribute(key, value) for key, value in (attributes or {}).items()]
    body = helper.make_function(
        "own", "F", ["x"], ["z"], [inner], [helper.make_opsetid("", opset)], attribute_protos=defaults
    )
    dims = ["batch", "sequence"]
    graph = helper.make_graph(
        builder.nodes,
        "g",
        [helper.make_tensor_value_info(item, TensorProto.INT64, dims) for item in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, TOKENS)],
        builder.constants,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[body])


@both
@pytest.mark.parametrize(
    ("attributes", "given"), [({"slope": 0.3}, {}), ({"slope": 0.3}, {"slope": 0.1})], ids=["default", "given"]
)
def test_attributes_of_functions(attributes: dict[str, float], given: dict[str, float], interface: str) -> None:
    model = with_function("LeakyRelu", attributes, 17, **given)
    assert_agree(model, rewrite(model, interface=interface, strict=True))


def test_functions_of_another_opset() -> None:
    """Operators that are the same in both opsets need no conversion; others are converted, or refused by name."""
    model = with_function("Relu", None, 18)
    assert_agree(model, rewrite(model, strict=True))
    with pytest.raises(RewriteError, match=r"function 'own\.F' is written in opset 18 and the model in 17"):
        rewrite(with_function("ReduceMean", None, 18))


@pytest.mark.parametrize("name", ["ids\n", "\x1b[2J", "i" * 5000], ids=["line", "escape", "long"])
@pytest.mark.parametrize("kind", ["input", "output"])
def test_names_that_no_line_can_hold_are_refused_as_such(kind: str, name: str) -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    value = getattr(model.graph, kind)[0]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if item == value.name else item for item in names]
    value.name = name
    with pytest.raises(RewriteError, match=f"the model has an {kind} named .*printable characters; export the model"):
        rewrite(model)
