# SPDX-License-Identifier: Apache-2.0
"""Arrivals of requests: generated, or recorded in a file of JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.fields import decode
from padfree.contract.text_files import read_text
from padfree.runtime.batching import Waiting

from ..errors import BuildError
from ..files import write_files

FloatArray = npt.NDArray[np.float64]

ARRIVALS = ("poisson", "bursts")
LENGTHS = ("short-skewed", "uniform")
BURST_PERIOD_S, BURST_S, BURST_FACTOR = 1.0, 0.2, 4.0
"""Bursts: four times the rate for a fifth of every second, a quarter of it for the rest; the same rate on average."""
SHORT_SKEWED = (1 / 8, 0.8)
"""Log-normal lengths, as queries and sentences have them: median over the longest, and the spread of the logarithm."""


def generate(
    *,
    rate: float,
    seconds: float,
    arrivals: str = "poisson",
    lengths: str | Sequence[int] = "short-skewed",
    max_length: int = 512,
    deadline_s: float = math.inf,
    seed: int = 0,
) -> list[Waiting]:
    """Independent requests at a mean rate, the same ones for the same arguments.

    Two rates with one seed have the same lengths in the same order; only time is stretched.

    Args:
        rate: requests per second.
        seconds: how long they come.
        arrivals: "poisson" or "bursts".
        lengths: "short-skewed" (log-normal, median an eighth of the longest), "uniform" (1 to the longest), or
            observed lengths to draw from.
        max_length: the longest; observed lengths beyond it are cut.
        deadline_s: how long after its arrival each answer is wanted.
        seed: of times and lengths.

    Raises:
        BuildError: a number that means nothing.
    """
    for option, value in (("--rates", rate), ("--seconds", seconds), ("--max-length", max_length)):
        if not 0 < value < math.inf:
            raise BuildError(f"{option} is {value}, allowed: above 0; correct it")
    if not deadline_s > 0:
        raise BuildError(f"--deadline-ms is {1e3 * deadline_s:g}, allowed: above 0; leave it out for none")
    clock, dice = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    count = max(1, round(rate * seconds))
    times = np.cumsum(clock.exponential(size=count)) / rate
    if arrivals == "bursts":
        times = _in_bursts(times)
    lengths_drawn = _draw(lengths, count, max_length, dice)
    return [
        Waiting(length, at_s, at_s + deadline_s)
        for at_s, length in zip(times.tolist(), lengths_drawn.tolist(), strict=True)
    ]


def rate_of(trace: Sequence[Waiting]) -> float:
    """Requests per second from the first to the last."""
    span_s = trace[-1].arrived_s - trace[0].arrived_s
    return (len(trace) - 1) / span_s if span_s else math.inf


def stretch(trace: Sequence[Waiting], rate: float) -> list[Waiting]:
    """The same requests at another mean rate; each allows its answer as long as before.

    Raises:
        BuildError: all requests of the trace come at once.
    """
    factor = rate_of(trace) / rate
    if not 0 < factor < math.inf:
        raise BuildError(f"--rates {rate:g}: the trace cannot be stretched to it; leave --rates out")
    return [
        Waiting(request.length, factor * request.arrived_s, request.deadline_s + (factor - 1) * request.arrived_s)
        for request in trace
    ]


def read_trace(path: Path) -> list[Waiting]:
    """Reads a trace: one object a line, {"at_ms": 12.5, "length": 87, "deadline_ms": 50}.

    `at_ms` never falls; `deadline_ms`, after the arrival, may be missing.

    Raises:
        BuildError: the file cannot be read, or a line is something else.
    """
    lines = read_text(path, BuildError, "pass a trace of JSON lines").splitlines()
    trace: list[Waiting] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            request = _read_line(f"{path}, line {number}", line)
            if trace and request.arrived_s < trace[-1].arrived_s:
                raise BuildError(f"{path}, line {number}: comes before the line above; sort the lines by at_ms")
            trace.append(request)
    if not trace:
        raise BuildError(f"{path}: holds no request; write one JSON object a line")
    return trace


def write_trace(path: Path, trace: Sequence[Waiting]) -> None:
    """Writes a trace as read_trace reads it.

    Raises:
        BuildError: the file cannot be written.
    """
    lines = []
    for request in trace:
        record: dict[str, Any] = {"at_ms": round(1e3 * request.arrived_s, 4), "length": request.length}
        if request.deadline_s < math.inf:
            record["deadline_ms"] = round(1e3 * (request.deadline_s - request.arrived_s), 4)
        lines.append(json.dumps(record) + "\n")
    write_files([(path, "".join(lines).encode())])


def _read_line(where: str, line: str) -> Waiting:
    try:
        record = decode(line)
    except ValueError as error:
        raise BuildError(f"{where}: not JSON ({error}); write one object a line") from error
    if not isinstance(record, Mapping) or not {"at_ms", "length"} <= set(record) <= {"at_ms", "length", "deadline_ms"}:
        raise BuildError(f"{where}: {line[:60]!r}, allowed: an object of at_ms, length and perhaps deadline_ms")
    numbers = [record["at_ms"], record["length"], record.get("deadline_ms", math.inf)]
    whole = isinstance(record["length"], int)
    if not whole or not all(isinstance(value, (int, float)) and value >= 0 for value in numbers):
        raise BuildError(f"{where}: {line[:60]!r}, allowed: numbers of at least 0, and a whole length; correct it")
    at_s = numbers[0] / 1e3
    return Waiting(record["length"], at_s, at_s + numbers[2] / 1e3)


def _in_bursts(times: FloatArray) -> FloatArray:
    """Evenly expected times, moved so that the expected number of arrivals follows the bursts."""
    periods = np.arange(math.ceil(times[-1] / BURST_PERIOD_S) + 1) * BURST_PERIOD_S
    expected = np.stack([periods, periods + BURST_FACTOR * BURST_S], axis=1).ravel()
    real = np.stack([periods, periods + BURST_S], axis=1).ravel()
    return np.interp(times, expected, real)


def _draw(
    lengths: str | Sequence[int], count: int, max_length: int, dice: np.random.Generator
) -> npt.NDArray[np.int64]:
    if lengths == "uniform":
        return dice.integers(1, max_length, size=count, endpoint=True)
    if lengths == "short-skewed":
        median, sigma = SHORT_SKEWED
        lengths_drawn = dice.lognormal(math.log(median * max_length), sigma, size=count)
        return np.clip(np.round(lengths_drawn), 1, max_length).astype(np.int64)
    if isinstance(lengths, str):
        raise BuildError(f"--lengths is {lengths!r}, allowed: {', '.join(LENGTHS)} or a file of lengths; correct it")
    observed: npt.NDArray[np.int64] = dice.choice(np.asarray(lengths, dtype=np.int64), size=count)
    return np.minimum(observed, max_length)
