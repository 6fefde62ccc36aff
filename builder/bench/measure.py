# SPDX-License-Identifier: Apache-2.0
"""Measures contenders in one process: answers first, then all in turns."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BuildError
from ..peers import engines, onnxruntime_peers, torch_peers
from ..peers.catalog import CPU_PEERS, GPU_PEERS, LIMIT
from ..peers.contender import Answers, Contender, UnavailableError, Way, relative_error
from ..peers.setup import Setup

ROUNDS = 15
MIN_ROUNDS = 3
BUDGET_MS = 60e3  # of all rounds: slow ways, on a CPU, get fewer
WARM_UP_RUNS = 3
ROUND_MS = 10.0  # of one way to run a contender, before it is the next one's turn
MAX_RUNS = 30
MAX_ERRORS = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1.5e-1, "fp8": 9e-1, "int8": 9e-1}
"""Largest root mean square of a column's differences to fp32, in parts of the column's. Half precision rounds a few
hundred times on the way through 12 to 24 layers, 2**-11 (fp16) or 2**-8 (bf16) of a value each: 4e-3 in fp16 is usual.
fp8 rounds both factors of fifty to a hundred GEMMs to 3 bits: 0.1 for trained models; for random weights 0.3 after
12 layers and 0.6 to 0.7 after 24, whose worst column changes with every rounding. Wrong answers are off by some 1.4."""


@dataclass(frozen=True)
class Timing:
    """Median time of a run, and the distance of the 10th and 90th percentile as a part of it."""

    median_ms: float
    spread: float

    @staticmethod
    def of(times: list[float]) -> Timing:
        """The timing of some runs."""
        tenths = statistics.quantiles(times, n=10) if len(times) > 1 else [times[0], times[0]]
        median = statistics.median(times)
        return Timing(median, (tenths[-1] - tenths[0]) / median)


@dataclass(frozen=True)
class Measurement:
    """The results: ours and every peer by title and way of running, errors, and who could not take part."""

    ours: Mapping[str, Timing]
    peers: Mapping[str, Mapping[str, Timing]]
    limit: Timing | None
    errors: Mapping[str, float]
    unavailable: Mapping[str, str]
    build_s: Mapping[str, float]

    @property
    def ours_ms(self) -> float:
        """The faster way."""
        return best(self.ours)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the faster way of each, and all ways."""
        ways = {OURS: self.ours, **self.peers}
        return {
            "ours_ms": round(self.ours_ms, 4),
            "peers_ms": {title: round(best(timings), 4) for title, timings in self.peers.items()},
            "limit_ms": None if self.limit is None else round(self.limit.median_ms, 4),
            "all_times_ms": {
                title: {way: round(item.median_ms, 4) for way, item in timings.items()}
                for title, timings in ways.items()
            },
            "spreads": {
                title: {way: round(item.spread, 4) for way, item in timings.items()} for title, timings in ways.items()
            },
            "errors": {title: float(f"{error:.3g}") for title, error in self.errors.items()},
            "unavailable": dict(self.unavailable),
            "build_seconds": dict(self.build_s),
        }


OURS = "padfree"


def best(timings: Mapping[str, Timing]) -> float:
    """Median of the fastest way in ms."""
    return min(item.median_ms for item in timings.values())


def measure_gpu(setup: Setup, peers: list[str]) -> Measurement:
    """Our engine and some of GPU_PEERS.

    Raises:
        BuildError: our engine cannot be built, or its answers are wrong.
    """
    torch_peers.forget_compiled()
    makers = {name: (GPU_PEERS[name].title, GPU_PEERS[name].make) for name in peers}
    return _measure(setup, truth_of(setup), engines.packed_contender, makers)


def truth_of(setup: Setup) -> Answers:
    """The original's answers in fp32."""
    try:
        return torch_peers.truth(setup)
    except UnavailableError:
        setup.say("original in onnxruntime on the CPU, for the right answers")
        return onnxruntime_peers.original_on_cpu(setup).answers


def measure_cpu(setup: Setup, peers: list[str]) -> Measurement:
    """The rewritten file and the original in onnxruntime on the CPU.

    Raises:
        BuildError: the rewritten file's answers are wrong.
    """
    original = onnxruntime_peers.original_on_cpu(setup)
    makers = {name: (CPU_PEERS[name].title, lambda _: original) for name in peers}
    return _measure(setup, original.answers, onnxruntime_peers.packed_on_cpu, makers)


def _measure(
    setup: Setup,
    truth: Answers,
    ours: Callable[[Setup], Contender],
    peers: Mapping[str, tuple[str, Callable[[Setup], Contender]]],
) -> Measurement:
    """Compares the answers of all with `truth`, then times those whose answers are right.

    Args:
        setup: model, batch and machine.
        truth: the original's answers.
        ours: makes our contender.
        peers: name -> title, and what makes the contender.

    Raises:
        BuildError: our own answers are wrong, or our engine cannot be built.
    """
    tolerance = MAX_ERRORS[setup.model.precision]
    errors: dict[str, float] = {}
    unavailable: dict[str, str] = {}
    ready: dict[str, Contender] = {}
    limit: Contender | None = None
    try:
        setup.say(OURS)
        ready[OURS] = ours(setup)
        errors[OURS] = relative_error(ready[OURS].answers, truth)
        if not errors[OURS] <= tolerance:
            raise _wrong_answers(setup, errors[OURS], tolerance)
        for name, (title, make) in peers.items():
            setup.say(title)
            try:
                contender = make(setup)
            except Exception as error:  # a peer that fails, in whatever library, is named and left out
                unavailable[title] = " ".join(str(error).split()) or type(error).__name__
                continue
            if name == LIMIT:
                limit = contender
                continue
            reason = _check(title, contender, truth, tolerance, errors)
            if reason:
                unavailable[title] = reason
                contender.close()
            else:
                ready[title] = contender
        setup.say("timing")
        entrants = ready if limit is None else {**ready, LIMIT: limit}
        timings = time_in_turns({title: item.ways for title, item in entrants.items()})
    except UnavailableError as error:
        raise BuildError(f"padfree's own engine cannot take part: {error}") from error
    finally:
        for item in ready.values():
            item.close()
    found_limit = timings.pop(LIMIT, None)
    return Measurement(
        timings.pop(OURS),
        timings,
        None if found_limit is None else next(iter(found_limit.values())),
        errors,
        unavailable,
        {title: item.build_s for title, item in ready.items() if item.build_s},
    )


def _wrong_answers(setup: Setup, error: float, tolerance: float) -> BuildError:
    """The error where our own answers differ too much; both numbers are parts of a column's size."""
    if setup.model.metadata.mask.input is None and len(set(setup.batch.ragged.seq_lens.tolist())) > 1:
        return BuildError(
            "no input of the model tells what is padding, so that the original's answers for a padded batch are not "
            "those of its sequences; nothing was timed: measure a batch of one length, with a file of equal lengths "
            "for --lengths"
        )
    return BuildError(
        f"our answers differ from the original's by {error:.1e} of a column's size, allowed: {tolerance:.0e} in "
        f"{setup.model.precision}; nothing was timed: check that --torch, if given, is the same model, run `padfree "
        "optimize`, which verifies, and report what it says"
    )


def _check(title: str, contender: Contender, truth: Answers, tolerance: float, errors: dict[str, float]) -> str:
    """Notes a peer's error; returns why it cannot take part, or nothing."""
    try:
        errors[title] = relative_error(contender.answers, truth)
    except UnavailableError as error:
        return str(error)
    if errors[title] <= tolerance:
        return ""
    return f"wrong answers: they differ by {errors[title]:.1e} of a column's size, allowed: {tolerance:.0e}"


def time_in_turns(ways: Mapping[str, Mapping[str, Way]], rounds: int = ROUNDS) -> dict[str, dict[str, Timing]]:
    """Times all ways in turns, so that what changes with time (clocks, temperature) meets all alike.

    Every round has an order of its own: a GPU at its power limit lowers its clock for a while, and whoever always came
    after the same neighbour would pay for it, or gain.
    """
    shuffled = random.Random(0)
    flat = [(title, way, run) for title, runs in ways.items() for way, run in runs.items()]
    counts: dict[tuple[str, str], int] = {}
    round_ms = 0.0
    times: dict[tuple[str, str], list[float]] = {(title, way): [] for title, way, _ in flat}
    for title, way, run in flat:
        typical = statistics.median(run(WARM_UP_RUNS))
        counts[title, way] = max(1, min(MAX_RUNS, round(ROUND_MS / max(typical, 1e-3))))
        round_ms += counts[title, way] * typical
    for _ in range(max(MIN_ROUNDS, min(rounds, int(BUDGET_MS / max(round_ms, 1e-3))))):
        for title, way, run in shuffled.sample(flat, len(flat)):
            times[title, way] += run(counts[title, way])
    return {title: {way: Timing.of(times[title, way]) for way in runs} for title, runs in ways.items()}
