# SPDX-License-Identifier: Apache-2.0
"""The page of tested models says what the rewriter does."""

from __future__ import annotations

from .models_table import PAGE, page


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.onnx_tools.models_table"
