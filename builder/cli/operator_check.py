# SPDX-License-Identifier: Apache-2.0
"""`padfree doctor --check`: every operator on this machine's GPU, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import padfree
from padfree.builder.errors import BuildError
from padfree.builder.gpu_files import no_gpu

from .console import Working, error_console, number_text, print_line, print_table

if TYPE_CHECKING:
    from padfree.builder.operator_check.checking import CaseResult

COLUMNS = ("operator", "variant", "type", "result", "error", "allowed", "time us", "floor us", "times")
REPORT = "padfree doctor --check --json > gpu.json"


def check_operators(arguments: argparse.Namespace) -> int:
    """Checks all operators and shows what came of it; 1 where any is wrong.

    Raises:
        BuildError: no GPU, no TensorRT or no plugin library that fits; the message says what to do.
    """
    from padfree.builder.engine.build import check_machine
    from padfree.builder.engine.linear import FP8_OPERATOR
    from padfree.builder.operator_check.cases import all_cases
    from padfree.builder.operator_check.report import is_right, make_report
    from padfree.builder.operator_check.worker import check_all
    from padfree.onnx_tools.operators import OPERATORS

    # A GPU without e4m3 is checked all the same, but for that.
    try:
        check_machine(arguments.device, operators=[name for name in OPERATORS if name != FP8_OPERATOR])
    except BuildError as error:
        if no_gpu():
            message = f"--check runs operators on a GPU, and {no_gpu()}; run it on a machine that has one"
            raise BuildError(message) from error
        raise
    environment: dict[str, Any] = {}
    results: list[CaseResult] = []
    with Working(error_console(), "starting TensorRT") as working:
        for result in check_all(arguments.device, environment):
            results.append(result)
            working.update(f"{len(results)} of {len(all_cases())}: {result.operator}, {result.variant}, {result.kind}")
    report = make_report(results, environment, padfree.__version__)
    if arguments.json:
        print_line(json.dumps(report, indent=2))
    else:
        _show(results, report)
    return 0 if is_right(results) else 1


def _show(results: Sequence[CaseResult], report: dict[str, Any]) -> None:
    gpu = report["gpu"] or {"name": "this GPU", "copy_gb_s": 0.0}
    title = f"operators on {gpu['name']}, TensorRT {report['tensorrt']}; a copy moves {gpu['copy_gb_s']:.0f} GB/s"
    print_table(title, COLUMNS, [_row(item) for item in results])
    for item in results:
        if item.detail:
            print_line(f"{item.operator}, {item.variant}, {item.kind}: {item.detail}")
    counts = ", ".join(f"{count} {state}" for state, count in report["counts"].items())
    print_line(f"{len(results)} checks: {counts}; for a report: {REPORT}")


def _row(item: CaseResult) -> tuple[str, ...]:
    times = item.time_us / item.floor_us if item.time_us is not None and item.floor_us else None
    floor = f"{number_text(item.floor_us, '.2f')}{f' ({item.floor_by})' if item.floor_by else ''}"
    return (
        *(item.operator, item.variant, item.kind, item.state),
        *(number_text(item.relative, ".1e"), number_text(item.allowed, "g"), number_text(item.time_us, ".2f"), floor),
        number_text(times, ".1f"),
    )
