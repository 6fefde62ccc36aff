# SPDX-License-Identifier: Apache-2.0
"""docs/reference/operators.md and plugins/shell/schemas.h agree with the operators' description."""

from __future__ import annotations

from . import operator_schemas
from .operator_table import render, write


def test_operators_in_the_document_are_those_of_the_description() -> None:
    assert write() == render(), "run: python -m tests.plugins.operator_table"


def test_the_header_is_that_of_the_description() -> None:
    header = operator_schemas.HEADER.read_text("utf-8")
    assert header == operator_schemas.render(), "run: python -m tests.plugins.operator_table"
