# SPDX-License-Identifier: Apache-2.0
"""Exported files of many kinds: right answers, or a refusal whose reason is true."""

from __future__ import annotations

import pytest

from .exports import assert_right, inputs_of, load

PACKED_WHOLLY = ("bart_p160_dy18", "hand_flat2d_ts17", "n_gemm", "torch_tel_dy18")


@pytest.mark.parametrize("name", PACKED_WHOLLY)
def test_nothing_stays_padded(name: str) -> None:
    result = assert_right(load(name), inputs_of(name), "packed")
    assert result.report.complete, str(result.report)
