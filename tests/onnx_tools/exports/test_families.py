# SPDX-License-Identifier: Apache-2.0
"""Encoders of many families, heads and exporters: rewritten in both interfaces, they compute the original's results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from padfree.onnx_tools import rewrite

from tests.support import families
from tests.support.families import Case, all_cases, assert_same, partly_packed
from tests.support.rewritings import Rewritings

CASES = [case for case in all_cases() if not case.static]
FAMILIES = {"bert", "roberta", "xlm_roberta", "camembert", "distilbert", "albert", "electra", "nomic_bert",
            "modernbert", "mpnet", "t5", "deberta_v2", "deberta_v3"}  # fmt: skip
OUTPUTS = {"hidden": "packed", "token_classification": "packed", "question_answering": "packed", "masked_lm": "packed",
           "colbert": "packed", "sparse_masked_lm": "packed"}  # fmt: skip

interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


def test_every_choice_is_there() -> None:
    assert {case.family for case in CASES} == FAMILIES
    assert len({case.head for case in CASES}) == 17
    assert {case.opset for case in CASES} == set(range(14, 24))
    pairs = {(case.exporter, case.attention, case.dtype, case.external) for case in CASES}
    assert len(pairs) == 16


@interfaces
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers(case: Case, interface: str, rewritings: Rewritings) -> None:
    report = assert_same(case, interface, rewritings.of_case(case, interface))
    assert report.packed_gemm_share == 1.0
    layers = 1 if case.activation or (case.head != "hidden" and case.family == "bert") else 2
    missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
    partly = partly_packed(interface)
    if case.family not in partly:
        assert report.plugins["PadfreeAttention"] == layers
        assert report.complete, str(report)
    else:
        count, reason = partly[case.family]
        assert report.plugins.get("PadfreeAttention", 0) == count
        assert len(missed) == layers - count
        assert all(reason in item for item in missed), missed
    if interface == "packed":
        assert set(report.outputs.values()) == {OUTPUTS.get(case.head, "per_sequence")}


@pytest.mark.parametrize("family", ["albert"])
def test_shared_weights_stand_once(family: str, rewritings: Rewritings) -> None:
    for case in (case for case in CASES if case.family == family):
        before, after = (
            sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer if len(tensor.dims) == 2)
            for model in (onnx.load(case.path), rewritings.of_case(case).model)
        )
        assert after <= before


@interfaces
@pytest.mark.parametrize("name", ["nomic_bert_torchscript_sdpa", "deberta_v2_dynamo_eager", "modernbert_dynamo_sdpa"])
def test_rewritings_are_verified(name: str, interface: str) -> None:
    case = next(case for case in CASES if case.name == name)
    result = rewrite(case.path, interface=interface)
    inputs = [item["name"] for item in families.metadata_of(result)["inputs"]]
    if interface == "packed":
        assert "max_seqlen" not in inputs


CONTIGUOUS = ["modernbert_dynamo_sdpa", "mpnet_torchscript_eager", "t5_torchscript_sdpa", "deberta_v3_dynamo_eager",
              "deberta_v2_torchscript_eager", "modernbert_mean_classification_dynamo",
              "modernbert_cls_classification_torchscript", "modernbert_sparse_masked_lm_dynamo"]  # fmt: skip


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_contiguous_masks(name: str) -> None:
    """Where a row has no holes between its tokens, the padded interface leaves nothing padded either."""
    case = next(case for case in CASES if case.name == name)
    result = rewrite(case.path, interface="padded", masks="contiguous", strict=True)
    assert families.metadata_of(result)["masks"] == "contiguous"
    assert result.report.contiguous_because
    assert_same(case, "padded", result)


def test_padding_ids_are_named(rewritings: Rewritings) -> None:
    for case in CASES:
        if case.exporter == "dynamo" and case.family in ("roberta", "mpnet"):
            report = rewritings.of_case(case).report
            assert report.excluded_ids == {"input_ids": (1,)}
            assert "'input_ids' must not hold 1 in a sequence" in str(report)
            assert rewritings.of_case(case, "padded").report.excluded_ids == {}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["nomic_bert_dynamo_sdpa", "t5_torchscript_eager", "modernbert_dynamo_eager"])
def test_precision(name: str, precision: str) -> None:
    case = next(case for case in CASES if case.name == name)
    result = rewrite(case.path, precision=precision)
    assert families.metadata_of(result)["precision"] == precision
