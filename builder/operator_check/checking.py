# SPDX-License-Identifier: Apache-2.0
"""One operator after the other: built, run, compared and timed, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import onnx
from padfree.contract.names import EIGHT_BITS
from padfree.runtime import SessionError
from padfree.runtime.gpu import Device

from ..engine.linear import EIGHT_BIT_OPERATORS, eight_bit_problem
from ..errors import BuildError
from .cases import Case
from .engines import Ran
from .graphs import CaseGraph
from .peaks import Peaks
from .reference import LARGEST_ERRORS, ReferenceResults, difference, reference_results

ResultState = Literal["right", "wrong", "failed", "not here"]


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    relative: the worst row's error, None where nothing ran; allowed: how much it may be.
    time_us, floor_us: of the operator, and the least that this GPU can take; floor_by: "bytes" or "flops".
    detail: why it is wrong, failed or is not for this GPU.
    """

    operator: str
    variant: str
    kind: str
    state: ResultState
    relative: float | None = None
    allowed: float | None = None
    time_us: float | None = None
    floor_us: float | None = None
    floor_by: str = ""
    detail: str = ""


def result_of(case: Case, state: ResultState, **facts: Any) -> CaseResult:
    """The result of this case."""
    return CaseResult(case.operator, case.variant, case.kind, state, **facts)


class Runner(Protocol):
    """Runs the graph of a case."""

    def run(self, graph: CaseGraph, model: onnx.ModelProto) -> Ran:
        """The outputs of a case, and how long the checked operators took."""


class RunFailedError(Exception):
    """Raised where an engine did not run: nothing may work any more in this process. `result` is the case's."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(result.detail)
        self.result = result


def check_cases(cases: Iterable[Case], runner: Runner, device: Device, peaks: Peaks) -> Iterator[CaseResult]:
    """Checks cases in order; references are computed while the engine before is built.

    Raises:
        RunFailedError: an engine did not run.
    """
    cases = list(cases)
    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit(_prepare, case) for case in cases[:1]]
        for at, case in enumerate(cases):
            graph, model, reference = ahead.pop().result()
            ahead += [pool.submit(_prepare, other) for other in cases[at + 1 : at + 2]]
            problem = eight_bit_problem(EIGHT_BIT_OPERATORS[case.kind], device) if case.kind in EIGHT_BITS else ""
            if problem:
                yield result_of(case, "not here", detail=problem)
                continue
            try:
                ran = runner.run(graph, model)
            except BuildError as error:
                yield result_of(case, "failed", detail=str(error))
                continue
            except SessionError as error:
                raise RunFailedError(result_of(case, "failed", detail=str(error))) from error
            yield _judge(case, graph, reference, ran, peaks)


def _prepare(case: Case) -> tuple[CaseGraph, onnx.ModelProto, ReferenceResults]:
    graph = case.make()
    model = graph.model()
    return graph, model, reference_results(graph, model)


def _judge(case: Case, graph: CaseGraph, reference: ReferenceResults, ran: Ran, peaks: Peaks) -> CaseResult:
    comparison = difference(graph, reference.outputs, ran.outputs)
    floor_us, floor_by = peaks.floor_us(case.operator, case.kind, reference.moved_bytes, graph.flops)
    return result_of(
        case,
        "wrong" if comparison.problem else "right",
        relative=comparison.relative,
        allowed=LARGEST_ERRORS[graph.kind],
        time_us=ran.time_us,
        floor_us=floor_us,
        floor_by=floor_by,
        detail=comparison.problem,
    )
