# SPDX-License-Identifier: Apache-2.0
"""Random graphs: the rewriter may leave things padded, or refuse a graph, but its answers are never others."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from padfree.onnx_tools import RewriteError, RewriteResult, rewrite

from .agreement import assert_agree
from .random_graphs import OPERATIONS, RandomGraph, Step

numbers = st.integers(0, 99)
programs = st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), numbers, numbers), max_size=6)
# Another one every day, so that the search goes on; a failure prints how to repeat it.
ROTATING_SEED = int(os.environ.get("PADFREE_TEST_SEED", datetime.date.today().toordinal()))
REFUSAL = "its result depends on padding"


def rewritten(steps: Sequence[Step], outputs: int, pooling: int, interface: str) -> RewriteResult | None:
    """Rewrites and compares a program; None where the graph is refused because it depends on padding."""
    graph = RandomGraph()
    graph.run(steps)
    model = graph.finished(outputs, pooling)
    try:
        result = rewrite(model, interface=interface, verify=False)
    except RewriteError as error:
        if REFUSAL not in str(error):
            raise
        return None
    reasons = [miss.reason for item in result.report.passes if item.name == "probe" for miss in item.missed]
    right_padded_only = graph.reads_first or bool(reasons)
    assert_agree(model, result, only="prefix" if right_padded_only else None)
    return result


@pytest.mark.parametrize("interface", ["packed", "padded"])
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=programs, outputs=numbers, pooling=numbers)
def test_random_graph(steps: list[Step], outputs: int, pooling: int, interface: str) -> None:
    rewritten(steps, outputs, pooling, interface)


@seed(ROTATING_SEED)
@settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(steps=programs, outputs=numbers, pooling=numbers, padded=st.booleans())
@example(steps=[], outputs=0, pooling=0, padded=False)
def test_another_random_graph_every_day(steps: list[Step], outputs: int, pooling: int, padded: bool) -> None:
    rewritten(steps, outputs, pooling, "padded" if padded else "packed")


KNOWN = {"layer", "add", "linear", "norm", "tanh", "softmax", "gate", "heads", "rotary", "columns", "rms", "sum over E",
         "masked", "filled", "positions"}  # fmt: skip
READS_PADDING = {"plain mean", "maximum", "softmax over S"}


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation(name: str, interface: str) -> None:
    result = rewritten([(list(OPERATIONS).index(name), 0, 1)], 2, 1, interface)
    if name in READS_PADDING:
        assert result is None
    else:
        assert result is not None
        assert result.report.complete == (name in KNOWN), str(result.report)
