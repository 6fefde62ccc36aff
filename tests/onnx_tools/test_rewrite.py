# SPDX-License-Identifier: Apache-2.0
"""The rewriter on tiny graphs: its results, that they compute the same, and why near misses are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import RewriteError, rewrite

from tests.support import exports
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output

from .agreement import INTERFACES, assert_agree


def operators(model: ModelProto) -> list[str]:
    return sorted(node.op_type for node in model.graph.node)


def test_one_layer_packed() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, strict=True)
    assert operators(result.model) == [
        "Add", "MatMul", "MatMul", "PadfreeAttention", "PadfreeEmbedding", "PadfreeLayerNorm", "PadfreeSchedule",
    ]  # fmt: skip
    assert [value.name for value in result.model.graph.input] == ["input_ids", "seq_lens"]
    assert result.report.complete
    assert result.report.outputs == {"y": "packed"}
    assert_agree(model, result)


def test_one_layer_padded() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface="padded", strict=True)
    counts = Counter(operators(result.model))
    assert {op: counts[op] for op in counts if op.startswith("Padfree")} == {
        "PadfreeIndex": 1, "PadfreeSchedule": 1, "PadfreePack": 2, "PadfreeEmbedding": 1, "PadfreeAttention": 1,
        "PadfreeLayerNorm": 1, "PadfreeUnpack": 1,
    }  # fmt: skip
    assert [value.name for value in result.model.graph.input] == ["input_ids", "attention_mask"]
    assert_agree(model, result)


def test_attention_facts() -> None:
    builder, hidden = one_layer()
    result = rewrite(with_output(hidden, builder, TOKENS))
    node = next(node for node in result.model.graph.node if node.op_type == "PadfreeAttention")
    facts = {attribute.name: attribute for attribute in node.attribute}
    assert (facts["num_heads"].i, facts["head_size"].i) == (2, 8)
    assert "max_seq_len" not in facts, "an option of engines"
    assert facts["scale"].f == np.float32(0.35)
    assert facts["qkv_layout"].s == b"3HD"


def test_each_weight_is_stored_once() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model)
    floats = [t for t in result.model.graph.initializer if t.data_type == TensorProto.FLOAT]
    before = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and np.prod(t.dims) > 1]
    assert sum(int(np.prod(t.dims)) for t in floats) == sum(int(np.prod(t.dims)) for t in before)


@pytest.mark.parametrize("interface", INTERFACES)
def test_first_token_and_dense(interface: str) -> None:
    builder, hidden = one_layer()
    first = builder.op("Gather", hidden, builder.constant(0, np.int64), axis=1)
    pooled = builder.op("Tanh", builder.linear(first, HIDDEN, 5))
    model = with_output(pooled, builder, ["batch", 5])
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.outputs == {"y": "per_sequence"}
    assert result.report.plugins["PadfreePool"] == 3  # pools attention's result, what is added to it, and the sum
    assert_agree(model, result)


def mean_pool(builder: EncoderBuilder, hidden: str, minimum: float = 1e-9) -> str:
    mask = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(2)), to=TensorProto.FLOAT)
    total = builder.op("ReduceSum", builder.op("Mul", hidden, mask), builder.axes(1), keepdims=0)
    count = builder.op("ReduceSum", mask, builder.axes(1), keepdims=0)
    return builder.op("Div", total, builder.op("Clip", count, builder.constant(minimum)))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("normalize", [False, True])
def test_mean_pooling(interface: str, normalize: bool) -> None:
    builder, hidden = one_layer()
    pooled = mean_pool(builder, hidden)
    if normalize:
        norm = builder.op("ReduceL2", pooled, axes=[-1], keepdims=1)
        pooled = builder.op("Div", pooled, builder.op("Clip", norm, builder.constant(1e-12)))
    model = with_output(pooled, builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    pool = next(node for node in result.model.graph.node if node.op_type == "PadfreePool")
    assert {attribute.name: attribute.i for attribute in pool.attribute}["normalize"] == int(normalize)
    assert "ReduceL2" not in operators(result.model)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_mean_over_at_least_three_tokens(interface: str) -> None:
    """The mean times the number of tokens, divided by that number or by three, whichever is larger."""
    builder, hidden = one_layer()
    model = with_output(mean_pool(builder, hidden, minimum=3.0), builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreePool"] == 1
    assert "Div" in operators(result.model)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_unknown_operator_is_an_island(interface: str) -> None:
    builder, hidden = one_layer()
    normed = builder.op("MeanVarianceNormalization", hidden, axes=[2])
    model = with_output(builder.norm(builder.op("Add", normed, hidden)), builder, TOKENS)
    result = rewrite(model, interface=interface)
    assert not result.report.complete
    assert any(
        "no rule knows the operator MeanVarianceNormalization" in padded_node.reason
        for padded_node in result.report.islands
    )
    assert result.report.plugins["PadfreeLayerNorm"] == 2
    if interface == "packed":
        assert [value.name for value in result.model.graph.input] == ["input_ids", "seq_lens", "max_seqlen"]
    assert_agree(model, result)
    with pytest.raises(RewriteError, match="no rule knows the operator MeanVarianceNormalization"):
        rewrite(model, interface=interface, strict=True)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("low", "is_pooled"), [(-1e9, True), (-50.0, False)])
def test_masked_maximum_over_the_sequence(interface: str, low: float, is_pooled: bool) -> None:
    builder, hidden = one_layer()
    kept = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(2)), to=TensorProto.BOOL)
    filled = builder.op("Where", kept, hidden, builder.constant(low))
    model = with_output(builder.op("ReduceMax", filled, axes=[1], keepdims=0), builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface)
    assert result.report.complete == is_pooled
    assert result.report.plugins.get("PadfreePool", 0) == int(is_pooled)
    reasons = [miss.reason for item in result.report.passes if item.name == "pooling" for miss in item.missed]
    assert any("sets masked tokens to -50.0" in reason for reason in reasons) != is_pooled
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_reshape_that_merges_batch_and_sequence(interface: str) -> None:
    builder, hidden = one_layer()
    flat = builder.op("Reshape", hidden, builder.axes(-1, HIDDEN))
    dense = builder.op("Gemm", flat, builder.weight(HIDDEN, HIDDEN), builder.weight(HIDDEN))
    back = builder.op("Reshape", dense, builder.op("Shape", hidden))
    model = with_output(back, builder, TOKENS)
    assert_agree(model, rewrite(model, interface=interface))


@pytest.mark.parametrize("interface", INTERFACES)
def test_transposed_sequence(interface: str) -> None:
    builder, hidden = one_layer()
    transposed = builder.linear(builder.op("Transpose", hidden, perm=[1, 0, 2]), HIDDEN, HIDDEN)
    model = with_output(builder.op("Transpose", transposed, perm=[1, 0, 2]), builder, TOKENS)
    assert_agree(model, rewrite(model, interface=interface))


def test_running_sum_over_the_sequence() -> None:
    builder, hidden = one_layer()
    model = with_output(builder.op("CumSum", hidden, builder.constant(1, np.int64)), builder, TOKENS)
    assert_agree(model, rewrite(model))
    result = rewrite(model, interface="padded", verify=False)
    probed = next(item for item in result.report.passes if item.name == "probe")
    assert "right-padded batches only" in probed.missed[0].reason
    assert_agree(model, result, only="prefix")


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [("ReduceMean", {"axes": [1], "keepdims": 0}), ("ReduceMax", {"axes": [1], "keepdims": 0})],
)
def test_reading_padding_is_refused(interface: str, op: str, attributes: dict[str, object]) -> None:
    builder, hidden = one_layer()
    model = with_output(builder.op(op, hidden, **attributes), builder, ["batch", HIDDEN])
    with pytest.raises(RewriteError, match=rf"\({op}\) reads masked slots: its result depends on padding"):
        rewrite(model, interface=interface, verify=False)


def test_last_slot_is_refused() -> None:
    builder, hidden = one_layer()
    last = builder.op("Gather", hidden, builder.constant(-1, np.int64), axis=1)
    model = with_output(last, builder, ["batch", HIDDEN])
    with pytest.raises(RewriteError, match=r"\(Gather\) reads masked slots"):
        rewrite(model, verify=False)


@pytest.mark.parametrize("interface", INTERFACES)
def test_attention_with_a_mask_that_nobody_knows_stays_padded(interface: str) -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    length = builder.op("Squeeze", builder.op("Shape", "input_ids", start=1))
    steps = builder.op("Range", builder.constant(0, np.int64), length, builder.constant(1, np.int64))
    block = builder.op("Div", steps, builder.constant(4, np.int64))
    apart = builder.op("Sub", *(builder.op("Unsqueeze", block, builder.axes(axis)) for axis in (0, 1)))
    other = builder.op("Cast", builder.op("Cast", apart, to=TensorProto.BOOL), to=TensorProto.FLOAT)
    later = builder.op("Mul", other, builder.constant(-10000.0))
    mask = builder.op("Add", builder.padding_mask(), later)
    model = with_output(builder.layer(x, mask), builder, TOKENS)
    result = rewrite(model, interface=interface)
    assert "PadfreeAttention" not in result.report.plugins
    assert result.report.packed_gemm_share == 1.0
    missed = [miss.reason for item in result.report.passes for miss in item.missed]
    assert any("does not depend on distances alone" in item for item in missed), missed
    assert_agree(model, result)
    with pytest.raises(RewriteError, match="nodes stayed padded"):
        rewrite(model, interface=interface, strict=True)


def test_mask_of_queries_is_refused() -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    mask = builder.op("Transpose", builder.padding_mask(), perm=[0, 1, 3, 2])
    model = with_output(builder.layer(x, mask), builder, TOKENS)
    with pytest.raises(RewriteError, match=r"reads masked slots: its result depends on padding"):
        rewrite(model)


def test_weak_mask_is_refused() -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    mask = builder.op("Mul", builder.padding_mask(), builder.constant(1e-4))
    model = with_output(builder.layer(x, mask), builder, TOKENS)
    with pytest.raises(RewriteError, match=r"adds -1\.0 to masked scores, which is not below -1000"):
        rewrite(model)


def test_attention_without_mask_is_refused() -> None:
    builder = EncoderBuilder()
    x = builder.embedding()
    hidden = builder.layer(builder.layer(x, None), builder.padding_mask())
    model = with_output(hidden, builder, TOKENS)
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(model, verify=False)


def test_causal_layer_needs_no_mask_where_padding_follows_all_tokens() -> None:
    builder = EncoderBuilder()
    hidden = builder.layer(builder.layer(builder.embedding(), builder.causal_mask()), builder.padding_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model)
    assert result.report.plugins["PadfreeAttention"] == 2
    assert_agree(model, result)
    missed = [miss.reason for item in rewrite(model, interface="padded").report.passes for miss in item.missed]
    assert "reads padding" in missed[0]


@pytest.mark.parametrize("interface", INTERFACES)
def test_layers_with_as_many_heads_share_a_task_list(interface: str) -> None:
    builder = EncoderBuilder()
    mask = builder.padding_mask()
    x = builder.embedding()
    for heads in (2, 4, 2, 4):
        x = builder.layer(x, mask, heads=heads)
    model = with_output(x, builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    output = {
        node.output[-1]: {item.name: item.i for item in node.attribute}["num_heads"]
        for node in result.model.graph.node
        if node.op_type == "PadfreeSchedule"
    }
    attentions = [node for node in result.model.graph.node if node.op_type == "PadfreeAttention"]
    assert sorted(output.values()) == [2, 4]
    assert [output[node.input[-1]] for node in attentions] == [2, 4, 2, 4]
    assert len({node.input[-2] for node in attentions}) == 1
    assert_agree(model, result)


def test_rewritten_model_is_refused(tmp_path: Path) -> None:
    builder, hidden = one_layer()
    result = rewrite(with_output(hidden, builder, TOKENS))
    with pytest.raises(RewriteError, match=r"the model holds .* it has been rewritten; run it or build an engine"):
        rewrite(result.model)
    onnx.save_model(result.model, tmp_path / "packed.onnx")
    with pytest.raises(RewriteError, match=r"packed\.onnx' holds operators of the domain 'padfree' already"):
        rewrite(tmp_path / "packed.onnx")


def test_no_attention() -> None:
    builder = EncoderBuilder()
    model = with_output(builder.linear(builder.embedding(), HIDDEN, HIDDEN), builder, TOKENS)
    with pytest.raises(RewriteError, match="no attention found"):
        rewrite(model)


@pytest.mark.parametrize(("argument", "value"), [("interface", "ragged"), ("precision", "int8")])
def test_bad_arguments(argument: str, value: str) -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    with pytest.raises(RewriteError, match=f"{argument} is '{value}', allowed are"):
        rewrite(model, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("reverse", [0, 1])
def test_positions_that_the_graph_counts(interface: str, reverse: int) -> None:
    """RoBERTa counts non-padding tokens. Counted from the end, padding must have its id to count for nothing."""
    builder = EncoderBuilder()
    words = builder.op("Gather", builder.weight(20, HIDDEN), "input_ids")
    real = builder.op("Cast", builder.op("Not", builder.op("Equal", "input_ids", builder.constant(1, np.int64))), to=7)
    counted = builder.op("CumSum", real, builder.constant(1, np.int64), reverse=reverse)
    positions = builder.op("Gather", builder.weight(32, HIDDEN), counted)
    embedded = builder.norm(builder.op("Add", words, positions))
    model = with_output(builder.layer(embedded, builder.padding_mask()), builder, TOKENS)
    if reverse:
        inputs = [exports.Input("input_ids", "ids", high=20, excl=(1,)), exports.Input("attention_mask", "mask")]
        result = exports.assert_right(model, inputs, interface)
        if interface == "packed":
            assert exports.metadata_of(result)["id_rules"]["input_ids"]["padding"] == 1
        return
    result = rewrite(model, interface=interface, verify=False)
    assert result.report.plugins["PadfreeEmbedding"] == 1
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.BOOL])
@pytest.mark.parametrize("island", [False, True])
def test_types_of_inputs(interface: str, kind: int, island: bool) -> None:
    builder, hidden = one_layer()
    if island:
        hidden = builder.op("CumSum", hidden, builder.constant(2, np.int64))
        kept = builder.op("Cast", builder.op("Unsqueeze", "attention_mask", builder.axes(2)), to=TensorProto.FLOAT)
        hidden = builder.op("ReduceSum", builder.op("Mul", hidden, kept), builder.axes(1), keepdims=0)
    model = with_output(hidden, builder, ["batch", HIDDEN] if island else TOKENS)
    model.graph.input[1].type.tensor_type.elem_type = kind
    if kind == TensorProto.INT32:
        model.graph.input[0].type.tensor_type.elem_type = kind
    assert_agree(model, rewrite(model, interface=interface, verify=False))


def valid_model() -> ModelProto:
    builder, hidden = one_layer()
    return with_output(hidden, builder, TOKENS)


def test_dangling_tensor() -> None:
    model = valid_model()
    model.graph.node[-1].input[0] = "nobody"
    with pytest.raises(RewriteError, match=r"the model is not valid ONNX.*nobody"):
        rewrite(model)


def test_cycle() -> None:
    model = valid_model()
    model.graph.node[5].input[0] = model.graph.node[-1].output[0]
    with pytest.raises(RewriteError, match="the model is not valid ONNX"):
        rewrite(model)


def test_tensor_made_twice() -> None:
    model = valid_model()
    model.graph.node[-2].output[0] = model.graph.node[-3].output[0]
    with pytest.raises(RewriteError, match="the model is not valid ONNX"):
        rewrite(model)


def test_input_of_another_kind() -> None:
    model = valid_model()
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(
        RewriteError, match=r"input 'attention_mask' is DOUBLE \[batch, sequence\]; every input must be"
    ):
        rewrite(model)


@pytest.mark.parametrize("dims", [["batch", "sequence", "sequence"], ["batch", 1, 1, "sequence"]])
def test_masks_of_other_shapes(dims: list[int | str]) -> None:
    model = valid_model()
    value = helper.make_tensor_value_info("attention_mask", TensorProto.FLOAT, dims)
    model.graph.input[1].CopyFrom(value)
    text = ", ".join(str(size) for size in dims)
    with pytest.raises(
        RewriteError, match=rf"'attention_mask' is FLOAT \[{text}\]; .* a mask \[batch, sequence\] alone"
    ):
        rewrite(model)


def test_control_flow() -> None:
    model = valid_model()
    model.graph.node.append(helper.make_node("Cast", ["attention_mask"], ["condition"], to=TensorProto.BOOL))
    branches = (
        helper.make_graph(
            [helper.make_node("Identity", ["y"], [name])], name, [], [helper.make_empty_tensor_value_info(name)]
        )
        for name in ("taken", "left")
    )
    names = ("then_branch", "else_branch")
    choice = helper.make_node("If", ["condition"], ["z"], name="choice", **dict(zip(names, branches, strict=True)))
    model.graph.node.append(choice)
    rewrite(model, verify=False)  # no output needs it
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(RewriteError, match=r"node 'choice' \(If\) chooses between subgraphs by 'condition'"):
        rewrite(model)
