# SPDX-License-Identifier: Apache-2.0
"""docs/reference/operators.md says what the operators' description says."""

from __future__ import annotations

from .operator_table import render, written


def test_operators_in_the_document_are_those_of_the_description() -> None:
    assert written() == render(), "run: python -m tests.plugins.operator_table"
