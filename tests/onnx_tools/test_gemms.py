# SPDX-License-Identifier: Apache-2.0
"""Matrix products counted in graphs, and what they cost at given lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.cost import GPUS, Gpu, Lengths, costs, flops, moved_bytes, roofline_s
from padfree.onnx_tools.gemms import GemmShape, gemms_of
from padfree.onnx_tools.report import CoverageReport
from padfree.onnx_tools.synthetic import bert_model

FAMILIES = Path(__file__).parents[1] / "fixtures" / "families"
LAYERS, HIDDEN, HEADS, INNER = 2, 32, 4, 48
LENGTHS = Lengths(batch=8, mean=24.0, maximum=40)


@pytest.fixture(scope="module")
def bert() -> CoverageReport:
    model = bert_model(LAYERS, HIDDEN, HEADS, INNER, vocab_size=50, max_positions=40)
    return rewrite(model, verify=False).report


def by_hand(lengths: Lengths, tokens: float, squares: float) -> dict[str, float]:
    """FLOPs of a BERT from its sizes, the tokens in the linear layers, and the squared lengths in attention."""
    return {
        "linear": 2 * LAYERS * tokens * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER),
        "attention": 2 * LAYERS * 2 * HIDDEN * squares,
        "head": 2 * lengths.batch * HIDDEN * HIDDEN,
    }


def test_flops_of_bert_are_those_of_its_sizes(bert: CoverageReport) -> None:
    actual = costs(bert.original.items, bert.rewritten.items, LENGTHS)
    padded = by_hand(LENGTHS, LENGTHS.slots, LENGTHS.batch * LENGTHS.maximum**2)
    packed = by_hand(LENGTHS, LENGTHS.tokens, LENGTHS.batch * LENGTHS.mean_square)
    for part, figures in actual["parts"].items():
        wanted = {"all": sum(padded.values()), **padded}[part], {"all": sum(packed.values()), **packed}[part]
        assert (figures["original_flops"], figures["rewritten_flops"]) == pytest.approx(wanted), part
        assert figures["padded_flops"] == 0
        assert figures["packed_share"] == 1
    assert actual["flop_ratio"] == pytest.approx(sum(padded.values()) / sum(packed.values()))
    assert bert.original.uncounted == bert.rewritten.uncounted == ()


@pytest.mark.parametrize(
    "name",
    ["bert_dynamo_sdpa", "albert_torchscript_eager", "bert_masked_lm_torchscript", "bert_question_answering_dynamo"],
)
def test_without_padding_both_models_do_the_same_work(name: str) -> None:
    report = rewrite(FAMILIES / f"{name}.onnx", verify=False).report
    equal = Lengths(batch=4, mean=16.0, maximum=16)
    actual = costs(report.original.items, report.rewritten.items, equal)
    for part, figures in actual["parts"].items():
        assert figures["original_flops"] == pytest.approx(figures["rewritten_flops"]), part


def test_islands_cost_what_padding_costs() -> None:
    linear = GemmShape("linear", "MatMul", True, "1", "T", "32", "96")
    padded_node = GemmShape("attention", "MatMul", False, "4*B", "S", "8", "S")
    figures = costs([linear, padded_node], [linear, padded_node], LENGTHS)["parts"]
    assert figures["attention"]["packed_share"] == 0
    assert figures["attention"]["padded_flops"] == figures["attention"]["rewritten_flops"] == 2 * 32 * 40 * 8 * 40
    packed, padded = 2 * LENGTHS.slots * 32 * 96, 2 * 32 * 40 * 8 * 40
    assert figures["all"]["packed_share"] == pytest.approx(packed / (packed + padded))


@pytest.mark.parametrize("name", ["deberta_v2_torchscript_eager", "deberta_v3_dynamo_eager", "modernbert_dynamo_sdpa"])
def test_gemms_with_positions_are_counted_too(name: str) -> None:
    report = rewrite(FAMILIES / f"{name}.onnx", verify=False).report
    assert report.original.uncounted == report.rewritten.uncounted == ()


def test_the_head_is_what_no_residual_sum_depends_on() -> None:
    report = rewrite(FAMILIES / "bert_masked_lm_dynamo.onnx", verify=False).report
    heads = {(item.rows, item.inner, item.columns) for item in report.rewritten.items if item.part == "head"}
    assert heads == {("T", "16", "16"), ("T", "16", "64")}  # the transform and the vocabulary projection


def test_lengths_have_the_moments_of_what_they_stand_for() -> None:
    u = (np.arange(100_000) + 0.5) / 100_000
    for mean in (10.0, 49.0, 50.0, 51.0, 80.0, 100.0):
        drawn = 2 * mean - 100 + 2 * (100 - mean) * u if mean >= 50 else 100 * u ** (100 / mean - 1)
        assert drawn.mean() == pytest.approx(mean, rel=1e-3)
        assert Lengths(1, mean, 100).mean_square == pytest.approx((drawn**2).mean(), rel=1e-3)


def test_bytes_and_roofline_by_hand() -> None:
    linear = GemmShape("linear", "MatMul", True, "1", "T", "32", "96", count=3)
    tokens = LENGTHS.tokens
    assert flops(linear, LENGTHS) == 3 * 2 * tokens * 32 * 96
    assert moved_bytes(linear, LENGTHS) == 3 * 2 * (tokens * 32 + 32 * 96 + tokens * 96)
    assert flops(linear, LENGTHS, padded=True) == 3 * 2 * LENGTHS.slots * 32 * 96
    scores = GemmShape("attention", "MatMul", False, "4*B", "S", "8", "S")
    assert moved_bytes(scores, LENGTHS) == 2 * 4 * 8 * 2 * 40 * 8  # both operands, but not the scores
    slow_memory, slow_cores = Gpu(1e6, 1.0), Gpu(1e-3, 1e9)
    assert roofline_s([linear], LENGTHS, slow_memory) == pytest.approx(moved_bytes(linear, LENGTHS) / 1e9)
    assert roofline_s([linear], LENGTHS, slow_cores) == pytest.approx(flops(linear, LENGTHS) / 1e9)


def test_reading_weights_limits_what_small_batches_gain(bert: CoverageReport) -> None:
    one, many = (
        costs(bert.original.items, bert.rewritten.items, Lengths(batch, 20.0, 40))["roofline"]["ratio"]
        for batch in (1, 512)
    )
    assert one < many
    assert set(GPUS) >= {"h200", "l4"}


def test_gemms_of_unknown_size_are_named() -> None:
    x = gs.Variable("x", np.float32, ["B", "S", 8])
    known, unknown, weight = (gs.Variable(name, np.float32) for name in ("known", "unknown", "made"))
    y = gs.Variable("y", np.float32, ["B", "S", None])
    constant = gs.Constant("w", np.ones((8, 4), np.float32))
    nodes = [
        gs.Node("MatMul", "product", inputs=[x, constant], outputs=[known]),
        gs.Node("NobodyKnows", "maker", inputs=[x], outputs=[weight]),
        gs.Node("MatMul", "of unknown size", inputs=[x, weight], outputs=[unknown]),
        gs.Node("Concat", "joined", {"axis": 2}, inputs=[known, unknown], outputs=[y]),
    ]
    graph = gs.Graph(nodes, [x], [y])
    actual = gemms_of(graph, analyse(graph))
    assert actual.items == (GemmShape("linear", "MatMul", True, "1", "B*S", "8", "4"),)
    assert actual.uncounted == ("of unknown size",)


def test_positions_cut_to_the_length_are_no_weights() -> None:
    """DeBERTa's first version multiplies queries by position keys, 2 S rows that it cuts from a constant table."""
    x = gs.Variable("x", np.float32, ["B", "S", 8])
    length, cut = gs.Variable("length", np.int64), gs.Variable("cut", np.float32)
    table = gs.Constant("table", np.ones((8, 64), np.float32))
    zero, one = (gs.Constant(name, np.asarray([value], np.int64)) for name, value in (("zero", 0), ("one", 1)))
    y, z = gs.Variable("y", np.float32, ["B", "S", "S"]), gs.Variable("z", np.float32, ["B", "S", 64])
    nodes = [
        gs.Node("Shape", "length", {"start": 1, "end": 2}, inputs=[x], outputs=[length]),
        gs.Node("Slice", "cut", inputs=[table, zero, length, one], outputs=[cut]),
        gs.Node("MatMul", "positions", inputs=[x, cut], outputs=[y]),
        gs.Node("MatMul", "layer", inputs=[x, table], outputs=[z]),
    ]
    graph = gs.Graph(nodes, [x], [y, z], opset=17)
    assert {(item.part, item.columns) for item in gemms_of(graph, analyse(graph)).items} == {
        ("attention", "S"), ("linear", "64"),
    }  # fmt: skip
