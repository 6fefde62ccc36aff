# SPDX-License-Identifier: Apache-2.0
"""Files by optimum, its optimiser and onnxruntime's tools: rewritten, they compute the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from padfree.onnx_tools import load_model, rewrite, standard_model

from tests.support.exports import metadata_of, session
from tests.support.families import (
    BY_DISTANCE,
    SPECIAL_IDS,
    TOLERANCE,
    Case,
    assert_same,
    feeds_for,
    masks,
    optimum_cases,
    partly_packed,
)
from tests.support.messages import widen
from tests.support.rewritings import Rewritings

CASES = optimum_cases()
BY_LENGTHS = {"O2", "O3", "O4", "lengths", "mha"}  # here fused attention takes lengths
FUSED = {
    "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "FusedGemm", "FusedMatMul", "Gelu",
    "MultiHeadAttention", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
}  # fmt: skip


def test_every_choice_is_there() -> None:
    held = {
        node.op_type for case in CASES for node in onnx.load(case.path).graph.node if node.domain == "com.microsoft"
    }
    assert held == FUSED
    assert {case.level for case in CASES} == {"", "O1", "extended", "raw_mask", "raw_mask_mha"} | BY_LENGTHS


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers(case: Case, interface: str, rewritings: Rewritings) -> None:
    report = assert_same(case, interface, rewritings.of_case(case, interface))
    assert report.packed_gemm_share == 1.0
    layers = 2 if case.head == "hidden" else 1
    count, reason = partly_packed(interface).get(case.family, (layers, ""))
    missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
    assert (report.plugins.get("PadfreeAttention", 0), len(missed)) == (count, layers - count)
    assert all(reason in item for item in missed), missed
    assert report.complete == (count == layers), str(report)
    fused = case.level in BY_LENGTHS and case.family not in BY_DISTANCE
    assert report.right_padded_only == fused


def test_lengths_are_said() -> None:
    case = next(case for case in CASES if case.name == "bert_O2")
    result = rewrite(case.path, interface="padded")
    assert "masks must be right-padded: attention takes lengths" in str(result.report)
    assert metadata_of(result)["coverage"]["right_padded_only"]
    assert not rewrite(case.path.with_name("bert_raw_mask.onnx")).report.right_padded_only


def test_weights_stand_once(rewritings: Rewritings) -> None:
    for name in ("bert_lengths", "albert_O2"):
        case = next(case for case in CASES if case.name == name)
        before, after = (
            Counter(tuple(sorted(tensor.dims)) for tensor in model.graph.initializer if len(tensor.dims) == 2)
            for model in (load_model(case.path), rewritings.of_case(case).model)
        )
        assert sum(after.values()) <= sum(before.values())


@pytest.mark.parametrize("name", ["bert_O2", "bert_O4", "t5_extended", "deberta_v2_O2"])
def test_standard_model(name: str) -> None:
    """Files only for TensorRT: the original in standard operators, for batches of all sizes."""
    case = next(case for case in CASES if case.name == name)
    original = load_model(case.path)
    standard = standard_model(original)
    onnx.checker.check_model(standard, full_check=True)
    assert {node.domain for node in standard.graph.node} == {""}
    assert not {"SimplifiedLayerNormalization", "If"} & {node.op_type for node in standard.graph.node}
    mask = masks("packed")["prefix"]
    feeds = feeds_for(original, mask, SPECIAL_IDS)
    a, b = (session(model).run(None, feeds)[0][mask] for model in (widen(original), standard))
    assert np.abs(a - b).max() <= TOLERANCE["fp32"] * np.sqrt((a**2).mean())
    assert standard_model(standard) is standard
