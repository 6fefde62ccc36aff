# SPDX-License-Identifier: Apache-2.0
"""What padfree's e4m3 operators require of TensorRT; docs/internals/tried-and-rejected.md has the findings."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from .fp8_probe import Prober
from .fp8_questions import QUESTIONS, Question

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]


@pytest.fixture(scope="module")
def prober() -> Prober:
    return Prober()


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_e4m3_goes_where_the_design_needs_it(prober: Prober, question: Question) -> None:
    line = prober.ask(question)
    assert line.startswith("no" if question.refused else "yes"), line


def test_constants_reach_plugins_without_the_parser(prober: Prober) -> None:
    assert prober.constant_by_network().startswith("yes")
