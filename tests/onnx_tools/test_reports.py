# SPDX-License-Identifier: Apache-2.0
"""Reports are true of the graphs: what stays padded, and one count of the work for every figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto
from padfree.builder.cli.coverage import verdict
from padfree.onnx_tools import CoverageReport, RewriteError, rewrite
from padfree.onnx_tools.analysis.symbolic import analyse
from padfree.onnx_tools.gemms import GemmShape, gemms_of
from padfree.onnx_tools.report import percent

from tests.support import exports
from tests.support.encoder import HEADS, HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output
from tests.support.families import Case, all_cases, optimum_cases
from tests.support.rewritings import Rewritings

from .agreement import INTERFACES, assert_agree
from .report_checks import assert_report_is_true

SIZE = HIDDEN // HEADS
both = pytest.mark.parametrize("interface", INTERFACES)


def check(model: ModelProto, interface: str) -> CoverageReport:
    result = rewrite(model, interface=interface, verify=False)
    assert_report_is_true(result)
    if not result.report.complete:
        with pytest.raises(RewriteError, match="stayed padded"):
            rewrite(model, interface=interface, verify=False, strict=True)
    return result.report


@both
@pytest.mark.parametrize("name", exports.names())
def test_exports(name: str, interface: str, rewritings: Rewritings) -> None:
    try:
        assert_report_is_true(rewritings.of_export(name, interface))
    except RewriteError as error:
        pytest.skip(f"refused: {error}")


@both
@pytest.mark.parametrize(
    "case", [c for c in (*all_cases(), *optimum_cases()) if not c.activation], ids=lambda c: c.name
)
def test_families(case: Case, interface: str, rewritings: Rewritings) -> None:
    try:
        assert_report_is_true(rewritings.of_case(case, interface))
    except RewriteError as error:
        pytest.skip(f"refused: {error}")


def pick(b: EncoderBuilder, hidden: str) -> tuple[str, list[object]]:
    """One token per sequence, by a formula: the last but one."""
    counts = b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=1)
    index = b.op("Max", b.op("Sub", counts, b.constant(2, np.int64)), b.constant(0, np.int64))
    positions = b.op("Expand", b.op("Unsqueeze", index, b.axes(2)), b.constant([1, 1, HIDDEN], np.int64))
    return b.op("Squeeze", b.op("GatherElements", hidden, positions, axis=1), b.axes(1)), ["batch", HIDDEN]


def highest(b: EncoderBuilder, hidden: str) -> tuple[str, list[object]]:
    """Integers of padded tokens: the index of each token's largest number, in a running sum along the sequence."""
    index = b.op("CumSum", b.op("ArgMax", hidden, axis=2, keepdims=0), b.constant(1, np.int64))
    return b.op("Cast", index, to=TensorProto.FLOAT), ["batch", "sequence"]


def first_columns(b: EncoderBuilder, hidden: str) -> tuple[str, list[object]]:
    """An output whose last axis is the sequence."""
    return b.op("Transpose", hidden, perm=[0, 2, 1]), ["batch", HIDDEN, "sequence"]


@both
@pytest.mark.parametrize("tail", [pick, highest], ids=lambda item: item.__name__)
def test_what_reads_padded_tokens_is_an_island(
    tail: Callable[[EncoderBuilder, str], tuple[str, list[object]]], interface: str
) -> None:
    builder, hidden = one_layer()
    model = with_output(*_swap(builder, tail(builder, hidden)))
    report = check(model, interface)
    if "PadfreeUnpack" in report.plugins and tail is highest:
        assert any("CumSum" in item.reason for item in report.islands), str(report)


def _swap(builder: EncoderBuilder, tail: tuple[str, list[object]]) -> tuple[str, EncoderBuilder, list[object]]:
    return tail[0], builder, tail[1]


def test_an_output_that_stays_padded_is_said_so() -> None:
    builder, hidden = one_layer()
    tail, shape = first_columns(builder, hidden)
    model = with_output(tail, builder, shape)
    report = rewrite(model).report
    if report.outputs == {"y": "padded"}:
        assert not report.complete
        assert any("'y'" in item.reason and "padded" in item.reason for item in report.islands), str(report)
        assert "output 'y' among them" in verdict(report.to_dict())
    assert check(model, "padded").complete  # that interface promises such an output


def convolution(b: EncoderBuilder, x: str, outputs: int = HIDDEN, groups: int = 1) -> str:
    """A linear layer as in SqueezeBERT: a convolution of one token, in groups, on [B,E,S]."""
    weight = b.weight(outputs, HIDDEN // groups, 1)
    return b.op("Conv", x, weight, b.weight(outputs), group=groups, kernel_shape=[1])


def squeezebert() -> ModelProto:
    """One layer on [B,E,S], and its last hidden state [B,S,E]."""
    b = EncoderBuilder()
    hidden = b.embedding()
    x = b.op("Transpose", hidden, perm=[0, 2, 1])
    q, k, v = (b.op("Reshape", convolution(b, x, groups=4), b.axes(0, HEADS, SIZE, -1)) for _ in range(3))
    scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 1, 3, 2]), k)
    scores = b.op("Add", b.op("Mul", scores, b.constant(0.35)), b.padding_mask())
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("Transpose", v, perm=[0, 1, 3, 2]))
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 1, 3, 2]), b.axes(0, HIDDEN, -1))
    total = b.op("Add", convolution(b, joined), x)
    y = b.norm(b.op("Transpose", total, perm=[0, 2, 1]))
    return with_output(y, b, TOKENS)


@both
def test_convolutions_are_linear_layers(interface: str) -> None:
    model = squeezebert()
    result = rewrite(model, interface=interface)
    report = check(model, interface)
    assert_agree(model, result)
    linear = [item for item in report.original.items if item.part == "linear"]
    assert {(item.op, item.batch, item.rows, item.inner, item.columns, item.count) for item in linear} == {
        ("Conv", "4", "B*S", "4", "4", 3), ("MatMul", "1", "B*S", "16", "16", 1),
    }  # fmt: skip
    work = sum(item.count * int(item.batch) * int(item.inner) * int(item.columns) for item in linear)
    assert work == 3 * 4 * 4 * 4 + 16 * 16
    rewritten = [item for item in report.rewritten.items if item.part == "linear"]
    padded = any(item.padded for item in rewritten)
    assert padded == any(node.op_type == "Conv" for node in result.model.graph.node)
    assert (report.packed_gemm_share == 1.0) == (not padded)


def test_nothing_counted_is_no_share() -> None:
    report = CoverageReport((), (), {}, {}, *(gemms_of(gs.Graph(), analyse(gs.Graph())) for _ in range(2)))
    assert report.packed_gemm_share is None
    assert report.to_dict()["packed_gemm_share"] is None
    assert "100" not in str(report)
    assert "no GEMM is counted" in verdict({**report.to_dict(), "complete": False})


def test_shares_are_rounded_down() -> None:
    assert [percent(share) for share in (1.0, 0.99999, 0.5, 0.0)] == ["100.0 %", "99.9 %", "50.0 %", "0.0 %"]


QUANTISED = {
    "MatMulInteger": (["x", "w"], {}), "QLinearMatMul": (["x", "s", "z", "w", "s", "z", "s", "z"], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", QUANTISED)
def test_quantised_gemms_are_counted(op: str) -> None:
    x = gs.Variable("x", np.uint8, ["B", "S", 8])
    scale, zero = gs.Constant("s", np.asarray(0.1, np.float32)), gs.Constant("z", np.asarray(3, np.uint8))
    tensors = {"x": x, "w": gs.Constant("w", np.ones((8, 4), np.uint8)), "s": scale, "z": zero}
    names, attributes = QUANTISED[op]
    y = gs.Variable("y", np.int32 if op == "MatMulInteger" else np.uint8, ["B", "S", 4])
    graph = gs.Graph([gs.Node(op, "p", attributes, [tensors[name] for name in names], [y])], [x], [y], opset=17)
    assert gemms_of(graph, analyse(graph)).items == (GemmShape("linear", op, True, "1", "B*S", "8", "4"),)


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_quantised_convolutions_are_counted(op: str) -> None:
    x = gs.Variable("x", np.uint8, ["B", 8, "S"])
    scale, zero = gs.Constant("s", np.asarray(0.1, np.float32)), gs.Constant("z", np.asarray(3, np.uint8))
    w = gs.Constant("w", np.ones((6, 4, 1), np.uint8))
    inputs = [x, w] if op == "ConvInteger" else [x, scale, zero, w, scale, zero, scale, zero]
    y = gs.Variable("y", np.int32 if op == "ConvInteger" else np.uint8, ["B", 6, "S"])
    graph = gs.Graph([gs.Node(op, "p", {"group": 2, "kernel_shape": [1]}, inputs, [y])], [x], [y], opset=17)
    assert gemms_of(graph, analyse(graph)).items == (GemmShape("linear", op, True, "2", "B*S", "4", "3"),)


def test_reasons_name_nodes_once() -> None:
    """A node's name is in quotes, followed by its operator."""
    folder = Path(__file__).parents[1] / "fixtures" / "families"
    for name in ("t5_dynamo_eager", "modernbert_torchscript_sdpa", "deberta_v3_torchscript_eager"):
        report = rewrite(folder / f"{name}.onnx", verify=False).report
        for miss in [*report.islands, *(miss for item in report.passes for miss in item.missed)]:
            assert "''" not in miss.reason
            assert ") '" not in miss.reason
