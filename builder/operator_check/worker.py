# SPDX-License-Identifier: Apache-2.0
"""Checks operators in a process of its own: a kernel that goes wrong ends CUDA for the process that it runs in."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..doctor import NOT_FROM_HERE
from ..errors import BuildError
from .cases import all_cases
from .checking import CaseResult, RunFailedError, check_cases, result_of
from .engines import EngineRunner
from .peaks import measure_peaks

MARK = "padfree-check "
"""Marks the process's own lines: libraries may print, too."""
MOST_SECONDS = 120.0
"""For one case, and for TensorRT's start; whatever takes longer hangs."""
_CODE = NOT_FROM_HERE + "from padfree.builder.operator_check.worker import serve; serve(sys.argv[1])"


def serve(request: str) -> None:
    """What the process does: reports the GPU, and then every case when it begins, and its result."""
    job = json.loads(request)
    runner = EngineRunner(job["device"])
    peaks = measure_peaks(runner.device)
    _tell({"gpu": {"name": runner.device.name, **asdict(peaks)}, "tensorrt": runner.tensorrt_version})
    cases = all_cases()
    chosen_cases = [cases[number] for number in job["cases"]]
    results = check_cases(chosen_cases, runner, runner.device, peaks)
    try:
        for number in job["cases"]:
            _tell({"begins": number})
            _tell({"result": asdict(next(results))})
    except RunFailedError as error:
        _tell({"result": asdict(error.result)})
        sys.exit(1)


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(what)}\n")
    sys.stdout.flush()


def check_all(device: int, environment: dict[str, Any]) -> Iterator[CaseResult]:
    """Checks every case on a GPU; where a process dies at one, another goes on with the next.

    Args:
        device: CUDA device number.
        environment: gets what is known of GPU and TensorRT.

    Raises:
        BuildError: the check cannot begin on this machine.
    """
    cases = all_cases()
    remaining = list(range(len(cases)))
    while remaining:
        done, is_running, last_line = 0, False, ""
        for line in _lines(device, remaining):
            if "said" in line:
                last_line = line["said"]
            elif "begins" in line:
                is_running = True
            elif "result" in line:
                done, is_running = done + 1, False
                yield _result(line["result"])
            else:
                environment.update(line)
        if not done and not is_running:
            raise BuildError(
                f"operators cannot be checked here: {last_line}; run `padfree doctor` to see what is missing"
            )
        if is_running:
            yield result_of(cases[remaining[done]], "failed", detail=f"the process ended: {last_line}")
            done += 1
        remaining = remaining[done:]


def _lines(device: int, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The lines of a new process, and last, if it failed, what it wrote to stderr."""
    command = [sys.executable, "-c", _CODE, json.dumps({"device": device, "cases": list(numbers)})]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            while True:
                watchdog = threading.Timer(MOST_SECONDS, process.kill)
                watchdog.start()
                line = process.stdout.readline()
                watchdog.cancel()
                if not line:
                    break
                if line.startswith(MARK):
                    yield json.loads(line.removeprefix(MARK))
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}, and no word"]
            yield {"said": lines[-1]}


def _result(raw: dict[str, Any]) -> CaseResult:
    """A result; numbers that JSON cannot hold came as texts."""
    relative = raw["relative"]
    return CaseResult(**{**raw, "relative": None if relative is None or not math.isfinite(relative) else relative})
