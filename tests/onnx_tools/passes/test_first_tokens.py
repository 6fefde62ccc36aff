# SPDX-License-Identifier: Apache-2.0
"""Models that need only one row per sequence from their last layer compute only that, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import RewriteResult, linear, rewrite
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.eight_bits import quantize_gemms
from padfree.onnx_tools.files.graph_io import import_graph
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.operators import node_attributes, padfree_nodes, without_functions
from padfree.onnx_tools.precision.element_types import check_element_types
from padfree.onnx_tools.quantization.layers import choose_layers, reads_stream
from padfree.onnx_tools.quantization.options import QuantizationOptions
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import INTERFACES, assert_agree, run
from tests.onnx_tools.report_checks import assert_report_is_true
from tests.support import folding_encoders
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder
from tests.support.exports import assert_valid
from tests.support.messages import with_linear
from tests.support.rewritings import Rewritings

INNER, CLASSES = 24, 3
MATMULS = ("MatMul", "Gemm", "PadfreeLinear")
LAST_LAYER = ["T", "B", "B", "B"]  # Q, K and V in one; attention's projection; the feed-forward network


def rows(model: ModelProto, *operators: str) -> list[str]:
    """The rows that nodes of these kinds read: "T" or "B"."""
    graph = import_graph(Model(without_functions(model)))
    analysis = analyse(graph)
    return [str((analysis[node.inputs[0]].shape or "?")[0]) for node in graph.nodes if node.op in operators]


def pools(model: ModelProto) -> list[tuple[str, int]]:
    """The mode of each pool, and whether it normalises."""
    results = [node_attributes(node) for node in padfree_nodes(model.graph) if node.op_type == "PadfreePool"]
    return [(str(item["mode"]), int(item["normalize"])) for item in results]


FIRST = ("first", 0)
MOVED = [FIRST, FIRST, ("each", 0)]  # of attention's result, of what the layer adds it to, and the model's own pool


def moved_count(result: RewriteResult) -> int:
    return next(item.replaced for item in result.report.passes if item.name == "first tokens")


def gelu(b: EncoderBuilder, x: str) -> str:
    erf = b.op("Erf", b.op("Div", x, b.constant(np.sqrt(2.0))))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.constant(1.0))), b.constant(0.5))


def tanh_gelu(b: EncoderBuilder, x: str) -> str:
    cube = b.op("Mul", b.op("Pow", x, b.constant(3.0)), b.constant(0.044715))
    inner = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), b.constant(0.79788456)))
    return b.op("Mul", b.op("Mul", x, b.constant(0.5)), b.op("Add", inner, b.constant(1.0)))


def gate(b: EncoderBuilder, x: str) -> str:
    half = INNER // 2
    b.op("Split", x, b.axes(half, half), axis=-1, output=f"{x}_u")
    b.nodes[-1].output.append(f"{x}_v")
    transposed = b.op("Mul", b.op("Sigmoid", f"{x}_u"), f"{x}_v")
    return b.op("Concat", transposed, b.op("Slice", x, b.axes(0), b.axes(half), b.axes(2)), axis=-1)


def groups(b: EncoderBuilder, x: str) -> str:
    """A softmax in each of four groups of features, which are then interleaved."""
    grouped = b.op("Softmax", b.op("Reshape", x, b.axes(0, 0, 4, INNER // 4)), axis=-1)
    return b.op("Reshape", b.op("Transpose", grouped, perm=[0, 1, 3, 2]), b.axes(0, 0, INNER))


Activation = Callable[[EncoderBuilder, str], str]
ACTIVATIONS: Mapping[str, Activation] = {"gelu": gelu, "tanh": tanh_gelu, "gate": gate, "groups": groups}


def feed_forward(b: EncoderBuilder, x: str, activation: Activation = gelu) -> str:
    return b.linear(activation(b, b.linear(x, HIDDEN, INNER)), INNER, HIDDEN)


def post_norm_layers(activation: Activation = gelu, layers: int = 2) -> tuple[EncoderBuilder, str]:
    """An encoder like BERT."""
    b = EncoderBuilder()
    x, mask = b.embedding(), b.padding_mask()
    for _ in range(layers):
        x = b.layer(x, mask)
        x = b.norm(b.op("Add", feed_forward(b, x, activation), x))
    return b, x


def norms_ahead(last_norm: bool = True) -> tuple[EncoderBuilder, str]:
    """An encoder with pre-norm layers, which add to a stream."""
    b = EncoderBuilder()
    x, mask = b.embedding(), b.padding_mask()
    for _ in range(2):
        x = b.op("Add", x, b.attention(b.norm(x), mask))
        x = b.op("Add", feed_forward(b, b.norm(x)), x)
    return b, b.norm(x) if last_norm else x


def first(b: EncoderBuilder, x: str) -> str:
    return b.op("Gather", x, b.constant(0, np.int64), axis=1)


def last(b: EncoderBuilder, x: str) -> str:
    """The row at the largest position of a kept token."""
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    positions = b.op("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))
    index = b.op("ArgMax", b.op("Mul", "attention_mask", positions), axis=1, keepdims=1)
    wide = b.op("Expand", b.op("Unsqueeze", index, b.axes(2)), b.axes(1, 1, HIDDEN))
    return b.op("Squeeze", b.op("GatherElements", x, wide, axis=1), b.axes(1))


def pooler(b: EncoderBuilder, x: str) -> str:
    return b.linear(b.op("Tanh", b.linear(first(b, x), HIDDEN, HIDDEN)), HIDDEN, CLASSES)


def normalize(b: EncoderBuilder, x: str) -> str:
    pooled = first(b, x)
    norm = b.op("ReduceL2", pooled, axes=[-1], keepdims=1)
    return b.op("Div", pooled, b.op("Expand", b.op("Clip", norm, b.constant(1e-12)), b.op("Shape", pooled)))


def masked_mean(b: EncoderBuilder, x: str) -> str:
    mask = b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(2)), to=TensorProto.FLOAT)
    total = b.op("ReduceSum", b.op("Mul", x, mask), b.axes(1), keepdims=0)
    return b.op("Div", total, b.op("Clip", b.op("ReduceSum", mask, b.axes(1), keepdims=0), b.constant(1e-9)))


def model_of(b: EncoderBuilder, **tails: str) -> ModelProto:
    """The model with outputs [batch, anything], or [batch, sequence, E] where the name begins with "tokens"."""
    for name, tensor in tails.items():
        b.op("Identity", tensor, output=name)
    return b.model({name: TOKENS if name.startswith("tokens") else ["batch", None] for name in tails})


def classifier(interface: str = "packed", activation: Activation = gelu) -> tuple[ModelProto, RewriteResult]:
    b, x = post_norm_layers(activation)
    model = model_of(b, y=pooler(b, x))
    return model, rewrite(model, interface=interface, strict=True)


def assert_right(model: ModelProto, result: RewriteResult) -> None:
    assert_valid(result.model)
    assert_report_is_true(result)
    assert_agree(model, result, tolerance=1e-4)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_classifier_computes_its_last_layer_for_first_tokens(name: str, interface: str) -> None:
    model, result = classifier(interface, ACTIVATIONS[name])
    assert moved_count(result) == 1
    assert rows(result.model, *MATMULS) == ["T"] * 4 + LAST_LAYER + ["B", "B"]
    assert rows(result.model, "PadfreeLayerNorm") == ["T", "T", "B", "B"]
    assert rows(result.model, "Erf", "Pow", "Split", "Softmax")[-1] == "B"
    assert pools(result.model) == MOVED
    assert_right(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_embedding_keeps_its_length_of_1(interface: str) -> None:
    b, x = post_norm_layers()
    model = model_of(b, y=normalize(b, x))
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) == 1
    assert rows(result.model, *MATMULS) == ["T"] * 4 + LAST_LAYER
    assert pools(result.model) == [FIRST, FIRST, ("each", 1)]
    assert result.model.graph.node[-1].op_type == "PadfreePool"
    assert not {"ReduceL2", "Max", "Clip"} & {node.op_type for node in result.model.graph.node}
    assert_right(model, result)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_pools_divide_by_lengths_in_half_precision(precision: str) -> None:
    """The division is entirely in the pool, whose rows are half precision; a separate 1e-12 would be 0 in fp16."""
    b, x = post_norm_layers()
    model = model_of(b, y=normalize(b, x))
    wide, narrow = (rewrite(model, precision=kind).model for kind in ("fp32", precision))
    types = check_element_types(without_functions(narrow), precision)
    *_, pool = [node for node in padfree_nodes(narrow.graph) if node.op_type == "PadfreePool"]
    half = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    assert pools(narrow) == [FIRST, FIRST, ("each", 1)]
    assert {types[pool.input[0]], types[pool.output[0]]} == {half}
    assert not {"ReduceL2", "Max", "Div"} & {node.op_type for node in narrow.graph.node[-4:]}
    if precision == "fp16":  # onnxruntime has no bf16
        feeds = {"input_ids": np.arange(9, dtype=np.int32), "seq_lens": np.asarray([4, 0, 5], np.int32)}
        (wanted,), (actual,) = (run(item, feeds) for item in (wide, narrow))
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=4e-3)
        np.testing.assert_allclose(np.linalg.norm(actual.astype(np.float64), axis=1), [1, 0, 1], atol=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_row_of_zeros_has_no_nan(precision: str) -> None:
    """Rows after a GEMM of zeros."""
    b, x = post_norm_layers()
    x = b.op("MatMul", x, b.constant(np.zeros((HIDDEN, HIDDEN))))
    result = rewrite(model_of(b, y=normalize(b, x)), precision=precision, verify=False)
    assert moved_count(result) == 1
    feeds = {"input_ids": np.arange(5, dtype=np.int32), "seq_lens": np.asarray([2, 3], np.int32)}
    np.testing.assert_array_equal(run(result.model, feeds)[0], np.zeros((2, HIDDEN)))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("last_norm", [True, False])
def test_norms_ahead_of_layers(interface: str, last_norm: bool) -> None:
    b, x = norms_ahead(last_norm)
    model = model_of(b, y=pooler(b, x))
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) == 1
    assert rows(result.model, *MATMULS) == ["T"] * 4 + LAST_LAYER + ["B", "B"]
    assert pools(result.model) == MOVED
    assert_right(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_two_heads(interface: str) -> None:
    """One head normalises, and an output is the first token's row itself, under two names."""
    b, x = post_norm_layers()
    pooled = first(b, x)
    model = model_of(b, y=pooler(b, x), z=normalize(b, x), rows=pooled, rows_again=pooled)
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) >= 2
    assert rows(result.model, *MATMULS)[:8] == ["T"] * 4 + LAST_LAYER
    assert_right(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_first_tokens_of_two_layers(interface: str) -> None:
    """The layer before the last is computed for all tokens, and the rows of its first tokens are taken once."""
    b, x = post_norm_layers(layers=1)
    below, mask = x, b.padding_mask()
    x = b.layer(x, mask)
    x = b.norm(b.op("Add", feed_forward(b, x), x))
    model = model_of(b, y=b.op("Concat", first(b, below), first(b, x), axis=-1))
    result = rewrite(model, interface=interface, strict=True)
    assert (moved_count(result), sorted(pools(result.model))) == (1, sorted(MOVED))
    assert rows(result.model, *MATMULS) == ["T"] * 4 + LAST_LAYER
    assert_right(model, result)


def tokens_too(b: EncoderBuilder, x: str) -> dict[str, str]:
    return {"y": pooler(b, x), "tokens": x}


def mean(b: EncoderBuilder, x: str) -> dict[str, str]:
    return {"y": masked_mean(b, x)}


def first_and_mean(b: EncoderBuilder, x: str) -> dict[str, str]:
    return {"y": b.op("Add", first(b, x), masked_mean(b, x))}


def rows_of_other_tokens(b: EncoderBuilder, x: str) -> dict[str, str]:
    """The last norm's sum is read elsewhere, and moving the norm would save no GEMM."""
    total = b.op("Add", feed_forward(b, x), x)
    return {"y": first(b, b.norm(total)), "tokens": total}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("tails", [tokens_too, mean, first_and_mean, rows_of_other_tokens])
def test_rows_that_something_else_reads_stay(
    tails: Callable[[EncoderBuilder, str], dict[str, str]], interface: str
) -> None:
    b, x = post_norm_layers()
    model = model_of(b, **tails(b, x))
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) == 0
    assert set(rows(result.model, "MatMul")[:8]) == {"T"}
    assert_right(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_feed_forward_network_that_is_read_elsewhere(interface: str) -> None:
    """The layer is computed for all tokens up to there, but the GEMM after it is not."""
    b, x = post_norm_layers()
    inner = gelu(b, b.linear(x, HIDDEN, HIDDEN))
    last = b.norm(b.op("Add", b.linear(inner, HIDDEN, HIDDEN), x))
    model = model_of(b, y=pooler(b, last), tokens=inner)
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) == 1
    assert rows(result.model, *MATMULS) == ["T"] * 9 + ["B"] * 3
    assert_right(model, result)


Tail = Callable[[EncoderBuilder, str], str]


@pytest.mark.parametrize("encoder", [post_norm_layers, norms_ahead])
@pytest.mark.parametrize("tail", [first, normalize, pooler])
def test_empty_sequences_are_zeros_and_change_nothing(
    tail: Tail, encoder: Callable[[], tuple[EncoderBuilder, str]]
) -> None:
    """On rows of zeros a head gives the same as after the pool of a model that computes all tokens."""

    def model(*, tokens: bool) -> RewriteResult:
        b, x = encoder()
        return rewrite(model_of(b, y=tail(b, x), **({"tokens": x} if tokens else {})))

    alone, every = model(tokens=False), model(tokens=True)
    assert (moved_count(alone), moved_count(every)) == (1, 0)
    ids = np.random.default_rng(0).integers(0, 20, 9).astype(np.int32)
    lengths = [np.asarray(item, np.int32) for item in ([0, 4, 0, 5, 0], [4, 5])]
    some, full = (run(alone.model, {"input_ids": ids, "seq_lens": item})[0] for item in lengths)
    wanted, _ = run(every.model, {"input_ids": ids, "seq_lens": lengths[0]})
    np.testing.assert_allclose(some[[1, 3]], full, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(some, wanted, rtol=1e-5, atol=1e-5)
    if tail is not pooler:
        np.testing.assert_array_equal(some[[0, 2, 4]], np.zeros((3, HIDDEN)))


def test_tensors_of_sequences_are_none_of_tokens() -> None:
    """Rows [B,E] have other names than the original's [B,S,E]."""
    _, result = classifier()
    origins = read_metadata(result.model)["origins"]
    graph = import_graph(Model(without_functions(result.model)))
    analysis = analyse(graph)
    output = {tensor.name: analysis[tensor].shape or () for node in graph.nodes for tensor in node.outputs}
    assert origins
    assert {str(output[name][0]) for name in origins if name in output} == {"T"}


def first_token_of(model: ModelProto, *, normalize: bool = False) -> ModelProto:
    """From a model of tokens, one that outputs their first, optionally divided by its length."""
    tokens = model.graph.output[0]
    width = tokens.type.tensor_type.shape.dim[2].dim_value or None
    b = EncoderBuilder()
    row = b.op("Gather", tokens.name, b.constant(0, np.int64), axis=1)
    if normalize:
        opset = next(item.version for item in model.opset_import if not item.domain)
        inputs, attributes = ([b.axes(-1)], {}) if opset >= 18 else ([], {"axes": [-1]})
        length = b.op("ReduceL2", row, *inputs, keepdims=1, **attributes)
        row = b.op("Div", row, b.op("Clip", length, b.constant(1e-12)))
    b.op("Identity", row, output="first")
    for item in b.nodes:
        item.name = f"head_{item.name or item.output[0]}"
    model.graph.initializer.extend(b.constants)
    model.graph.node.extend(b.nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("first", TensorProto.FLOAT, ["batch", width]))
    return model


def folding(model: ModelProto) -> tuple[int, list[str]]:
    """How many norms were folded, and why others were not."""
    actual = read_metadata(model)
    result = next(item for item in actual["coverage"]["passes"] if item["name"] == "norm folding")
    return result["replaced"], [miss["reason"] for miss in result["missed"]]


ROW_NORMS = {  # the last layer's norms of rows that remain
    "bert": 2,  # of what is added, and the last
    "gte": 2,  # gated
    "modernbert": 1,  # pre-norm layers
    "nomic_bert": 2,
    "t5": 1,
}


@pytest.mark.parametrize(("name", "normalize"), [*((name, False) for name in ROW_NORMS), ("bert", True), ("t5", True)])
def test_gemms_of_first_tokens_fold_norms(name: str, normalize: bool, rewritings: Rewritings) -> None:
    """As many are folded as if the last layer computed all tokens; the last norm stays in both.

    The first norm folds, too, where the words' rows have a kernel of their own: without an embedding's norm.
    """
    plain = rewrite(first_token_of(folding_encoders.load(name), normalize=normalize))
    rewritten, whole = with_linear(plain.model), rewritings.of_linear(name).model
    assert moved_count(plain) == 1
    (count, (reason,)), (whole_count, _) = folding(rewritten), folding(whole)
    has_embedding = "PadfreeEmbedding" in plain.report.plugins
    assert count == whole_count == (3 if has_embedding else 4)
    assert "(PadfreePool), which cannot apply it" in reason
    assert rows(rewritten, "PadfreeLinear") == ["T"] * 5 + ["B"] * 3
    assert not rows(rewritten, "MatMul", "Gemm")
    norms = rows(rewritten, "PadfreeLayerNorm")
    assert norms.count("B") == ROW_NORMS[name]
    assert not norms.count("T")
    assert pools(rewritten) == [FIRST, FIRST, ("each", int(normalize))]
    feeds = {item.name: _values(item) for item in plain.model.graph.input}
    (wanted,), (actual,) = run(plain.model, feeds), run(rewritten, feeds)
    np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(actual[EMPTY], np.zeros((2, actual.shape[1])))
    full = {**feeds, "seq_lens": np.delete(feeds["seq_lens"], EMPTY)}
    np.testing.assert_allclose(np.delete(actual, EMPTY, axis=0), run(rewritten, full)[0], rtol=1e-5, atol=1e-5)


def test_the_last_layers_gemms_take_norms_and_sums() -> None:
    """The GEMM after attention writes moments, the next norms by them, and the last adds rows that it norms itself."""
    rewritten = with_linear(rewrite(first_token_of(folding_encoders.load("bert"))).model)
    linear_nodes = [node for node in padfree_nodes(rewritten.graph) if node.op_type == "PadfreeLinear"]
    flags = ("has_residual", "has_moments", "has_x_moments", "has_residual_moments")
    results = [{name for name in flags if node_attributes(node)[name]} for node in linear_nodes[-3:]]
    assert results == [{"has_residual", "has_moments"}, {"has_x_moments"}, {"has_residual", "has_residual_moments"}]
    assert node_attributes(linear_nodes[-2])["activation"] == "gelu"


EMPTY = [1, 4]


def _values(item: Any) -> np.ndarray:
    if item.name == "seq_lens":
        return np.asarray([7, 0, 1, 12, 0], np.int32)
    rng, high = np.random.default_rng(1), 2 if "type" in item.name else 40
    return rng.integers(4 if high > 2 else 0, high, 20).astype(np.int32)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_fp8(name: str) -> None:
    """Products of all tokens are in e4m3, those of first tokens only in half precision."""
    plain = rewrite(first_token_of(folding_encoders.load(name)), precision="fp16", verify=False).model
    feeds = {item.name: _values(item) for item in plain.graph.input}
    rewritten = quantize_gemms(Model(plain), [feeds])
    assert rows(rewritten.proto, "PadfreeLinearFp8") == ["T"] * 5
    assert rows(rewritten.proto, "PadfreeLinear") == ["B"] * 3
    assert not rows(rewritten.proto, "MatMul", "Gemm")
    assert "QuantizeLinear" not in [node.op_type for node in rewritten.proto.graph.node]
    actual = read_metadata(rewritten.proto)["quantization"]
    gemms = [node.name for node in rewritten.proto.graph.node if node.op_type == "PadfreeLinear"]
    assert actual["kept"] == dict.fromkeys(
        gemms, "it multiplies only first tokens, which takes too little time to matter"
    )
    (effect,) = actual["outputs"].values()
    assert effect["mean_cosine"] > 0.98


def test_fp8_of_what_is_asked_for() -> None:
    """Even a pattern that names a product of first tokens only leaves it in half precision."""
    plain = rewrite(first_token_of(folding_encoders.load("bert")), precision="fp16", verify=False).model
    graph = import_graph(linear.with_linear(Model(plain)))
    begin, *_, last = [node.name for node in graph.nodes if node.op == "PadfreeLinear"]
    layers = choose_layers(graph, QuantizationOptions(quantize=(begin, last)))
    assert [layer.name for layer in layers.chosen_layers] == [begin]
    assert layers.kept_layers[last] == "it multiplies only first tokens, which takes too little time to matter"


@pytest.mark.parametrize(("name", "ahead"), [("bert", False), ("modernbert", True)])
def test_a_stream_is_one_whose_first_tokens_the_last_layer_adds(name: str, ahead: bool) -> None:
    """Its scale is checked for e4m3, like those of other streams; rows that are normed again are not a stream."""
    plain = rewrite(first_token_of(folding_encoders.load(name)), precision="fp16", verify=False).model
    graph = import_graph(linear.with_linear(Model(plain)))
    last = choose_layers(graph, QuantizationOptions()).chosen_layers[-1]
    assert reads_stream(last) is ahead


def test_work_is_counted_for_sequences() -> None:
    """Products of B rows in the last layer count as the layers' work, as in the original, and not as the head's."""
    model = bert_model(2, 64, 2, 128, 100, 64)
    del model.graph.output[0]
    report = rewrite(model).report
    results = {(item.part, item.rows, item.inner, item.columns): item.count for item in report.rewritten.items}
    assert results[("linear", "B", "64", "128")] == results[("linear", "B", "128", "64")] == 1
    assert results[("linear", "T", "64", "192")] == 2
    assert [key for key in results if key[0] == "head"] == [("head", "B", "64", "64")]
    assert (report.packed_gemm_share, report.complete) == (1.0, True)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("encoder", [post_norm_layers, norms_ahead])
def test_the_last_layer_for_last_tokens(encoder: Callable[[], tuple[EncoderBuilder, str]], interface: str) -> None:
    """As needed for decoders that pool the last token."""
    b, x = encoder()
    model = model_of(b, y=last(b, x))
    result = rewrite(model, interface=interface, strict=True)
    assert moved_count(result) == 1
    assert rows(result.model, *MATMULS)[-4:] == LAST_LAYER
    assert pools(result.model) == [("last", 0), ("last", 0), ("each", 0)]
    assert_right(model, result)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_last_tokens_of_empty_sequences_are_zeros(precision: str) -> None:
    b, x = post_norm_layers()
    model = model_of(b, y=last(b, x))
    ids = np.random.default_rng(0).integers(0, 20, 9).astype(np.int32)
    lengths = [np.asarray(item, np.int32) for item in ([0, 4, 0, 5, 0], [4, 5])]
    found = [
        run(rewrite(model, precision=precision).model, {"input_ids": ids, "seq_lens": item})[0] for item in lengths
    ]
    some, full = (np.asarray(item, np.float32) for item in found)
    np.testing.assert_allclose(some[[1, 3]], full, rtol=1e-2 if precision != "fp32" else 1e-6, atol=1e-6)
    np.testing.assert_array_equal(some[[0, 2, 4]], np.zeros((3, HIDDEN)))


def test_first_and_last_tokens_together_stay() -> None:
    """There are two rows, and taking only one of them first would save nothing."""
    b, x = post_norm_layers()
    model = model_of(b, y=first(b, x), z=last(b, x))
    result = rewrite(model, strict=True)
    assert moved_count(result) == 0
    assert_right(model, result)
