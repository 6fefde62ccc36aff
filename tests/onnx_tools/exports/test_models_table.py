# SPDX-License-Identifier: Apache-2.0
"""The page of tested models agrees with the rewriter."""

from __future__ import annotations

from tests.support.rewritings import Rewritings

from .models_table import PAGE, page


def test_page_is_up_to_date(rewritings: Rewritings) -> None:
    assert PAGE.read_text() == page(rewritings), "run: python -m tests.onnx_tools.exports.models_table"
