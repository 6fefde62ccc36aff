# SPDX-License-Identifier: Apache-2.0
"""`padfree doctor --check` on this GPU: every operator in every type, and operators that are wrong."""

from __future__ import annotations

import json
import time

import onnx
import pytest
from padfree.builder.cli import main
from padfree.builder.operator_check.cases import Case, all_cases
from padfree.builder.operator_check.checking import CaseResult, check_cases
from padfree.builder.operator_check.engines import EngineRunner, Ran
from padfree.builder.operator_check.graphs import CaseGraph
from padfree.builder.operator_check.peaks import measure_peaks
from padfree.onnx_tools.operators import padfree_nodes

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

MOST_SECONDS = 90.0
"""The promise is a minute; tests share the machine with others."""


def test_every_operator_is_right_on_this_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    code = main(["doctor", "--check", "--json"])
    seconds = time.monotonic() - start
    report = json.loads(capsys.readouterr().out)
    bad = [case for case in report["cases"] if case["state"] in ("wrong", "failed")]
    assert (code, bad) == (0, [])
    assert len(report["cases"]) == len(all_cases())
    right = [case for case in report["cases"] if case["state"] == "right"]
    assert [case for case in right if not case["time_us"]] == []
    assert report["gpu"]["copy_gb_s"] > 100
    assert seconds < MOST_SECONDS


class WrongAttention(EngineRunner):
    """Behaves as if attention's kernel were broken: TensorRT gets a graph whose scores are 1.5 times too large."""

    def run(self, graph: CaseGraph, model: onnx.ModelProto) -> Ran:
        for node in padfree_nodes(model.graph):
            if node.op_type == "PadfreeAttention":
                next(item for item in node.attribute if item.name == "scale").f *= 1.5
        return super().run(graph, model)


def test_a_wrong_operator_is_seen() -> None:
    runner = WrongAttention(0)
    names = ("PadfreeAttention", "PadfreePool")
    cases: list[Case] = [item for item in all_cases() if item.operator in names and item.kind == "fp16"]
    results: list[CaseResult] = list(check_cases(cases, runner, runner.device, measure_peaks(runner.device)))
    states = {result.operator: set[str]() for result in results}
    for result in results:
        states[result.operator].add(result.state)
    assert states == {"PadfreeAttention": {"wrong"}, "PadfreePool": {"right"}}
