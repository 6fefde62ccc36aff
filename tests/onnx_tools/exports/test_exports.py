# SPDX-License-Identifier: Apache-2.0
"""Exported files of many kinds: right results, or a refusal whose reason is true."""

from __future__ import annotations

import pytest
from padfree.onnx_tools import rewrite

from tests.support.exports import load
from tests.support.exports_table import expected_table
from tests.support.rewritings import Rewritings

PACKED_WHOLLY = (
    "attn_pool_ts17", "bart_p160_dy18", "hand_flat2d_ts17", "jax_rms_norm", "keras_attention_15", "keras_causal_18",
    "marian_ts17", "mean_einsum_ts17", "moe_top1_ts17", "n_gemm", "st_cls_dn_ts", "st_weightedmean_dn_ts",
    "tf2onnx_einsum_dense_15", "torch_tel_dy18", "x_attn_pool_mask_mul_p160_ts17",
)  # fmt: skip
PACKED_BUT_FOR_IDS = ("esm2_tf4_p160_ts17", "mean_no_special_ts17")  # what is made of ids and masks alone stays padded


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", PACKED_WHOLLY)
def test_nothing_stays_padded(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    assert result.report.complete, str(result.report)


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", PACKED_BUT_FOR_IDS)
def test_no_vectors_stay_padded(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    assert len(result.report.islands) <= 4, str(result.report)


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", ["roformer_torchscript", "roformer_dynamo"])
def test_tables_of_sines_are_rotary_embeddings(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    assert result.report.plugins["PadfreeRotary"] == 2


FAMILIES = [name for name in expected_table() if name.endswith(("_torchscript", "_dynamo"))]


def test_families_are_packed_entirely() -> None:
    assert len(FAMILIES) == 46
    assert all(expected_table()[name]["packed"]["complete"] for name in FAMILIES)


@pytest.mark.parametrize("name", [name for name in FAMILIES if not expected_table()[name]["padded"]["complete"]])
def test_families_without_holes_in_their_masks(name: str) -> None:
    result = rewrite(load(name), interface="padded", masks="contiguous", strict=True)
    assert result.report.contiguous_because
