# SPDX-License-Identifier: Apache-2.0
"""Checks and times PadfreeAttention and its peers on one case."""

from __future__ import annotations

import faulthandler
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from padfree.builder.peers.timing import capture

from benchmarks.event_timing import mean_ms

from .cases import Case
from .peers import ours
from .problem import DEVICE, Launch, Prepare, Problem, UnsupportedError, biased_scores

CACHE_MULTIPLE = 3
"""Input sets and outputs together have this multiple of the L2 cache's size."""
MAX_SETS = 256
WARM_CALLS = 20
"""Calls in a graph if the only input set stays in the cache."""
ROUNDS = 15
ROUND_MS = 2.0
"""Minimum time of one implementation's replays in one round."""
MAX_ERROR_RATIO = 2.0
"""Our error against float64 truth may be at most this multiple of that of plain PyTorch in fp16."""
WRONG_RATIO = 20.0
"""A peer whose error is more than this multiple of plain PyTorch's computes something else."""
ERROR_FLOOR = 5e-4
"""Relative error that rounding the result to fp16 alone can cause."""
PEER_LIMIT_S = 240
"""A peer that takes longer to prepare, or to run once (with compilation), hangs: the process ends."""

Say = Callable[[str], None]


class BrokenContextError(Exception):
    """A peer left CUDA in a state in which nothing runs any more."""


@dataclass(frozen=True)
class CapturedGraph:
    """An implementation whose result is right: its graph, how many calls that makes, and its largest relative error.

    The launch owns memory that the graph uses.
    """

    launch: Launch
    replay: Callable[[], object]
    calls: int
    error: float


def make_problem(case: Case, *, warm: bool) -> Problem:
    """Random inputs with a fixed seed, in enough sets to fill the cache several times."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = 1 if warm else min(MAX_SETS, max(2, -(-CACHE_MULTIPLE * cache_bytes // case.bytes_moved)))
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    heads = (3, case.heads) if case.kv_heads is None else (case.heads + 2 * case.kv_heads,)
    shape = (case.tokens, *heads, case.head_size)
    inputs = tuple(
        torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float16) for _ in range(int(sets))
    )
    cu_seqlens = torch.tensor([0, *case.lengths]).cumsum(0).to(DEVICE, torch.int32)
    return Problem(case, inputs, cu_seqlens)


def plain_attention(problem: Problem, dtype: torch.dtype) -> torch.Tensor:
    """softmax(Q K^T * scale) V of the first input set [T, E] in the given type, by sequence and by head."""
    q, k, v = problem.operands(0)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    output = torch.empty(q.shape, dtype=dtype, device=q.device)
    positions = problem.positions
    start = 0
    for length in problem.case.lengths:
        part = slice(start, start + length)
        heads_at_once = max(1, 2**30 // (length * length * 8))
        for first in range(0, problem.case.heads, heads_at_once):
            heads = slice(first, first + heads_at_once)
            queries, keys, values = (x[part, heads].transpose(0, 1).to(dtype) for x in (q, k, v))
            scores = biased_scores(problem, queries, keys, heads, positions)
            output[part, heads] = torch.matmul(scores.softmax(-1), values).transpose(0, 1)
        start += length
    return output.flatten(1)


def max_error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest difference over the largest value; infinite if the output is not finite or has another shape."""
    if output.shape != truth.shape or not bool(output.isfinite().all()):
        return float("inf")
    return float((output.double() - truth).abs().max() / truth.abs().max())


def prepare(make: Prepare, problem: Problem, truth: torch.Tensor, allowed: float, *, repeats: bool) -> CapturedGraph:
    """Runs an implementation, compares it with the truth, and captures its calls on all input sets."""
    launch: Launch = make(problem)
    output = launch.pack(launch.run(0)).clone()
    torch.cuda.synchronize()
    error = max_error(output, truth)
    if launch.checked and not error <= allowed:
        raise UnsupportedError(f"wrong: relative error {error:.1e}, allowed {allowed:.1e}")
    if repeats and not torch.equal(launch.pack(launch.run(0)), output):
        raise UnsupportedError("wrong: a second run gave other bits")
    sets = len(problem.inputs)
    order = range(sets) if sets > 1 else [0] * WARM_CALLS
    replay = capture(lambda: [launch.run(index) for index in order])
    replay()
    torch.cuda.synchronize()
    return CapturedGraph(launch, replay, len(order), error)


def attempt(name: str, action: Callable[[], CapturedGraph]) -> CapturedGraph | str:
    """The captured implementation, or the reason why there is none.

    Raises:
        BrokenContextError: nothing runs on the GPU any more.
    """
    faulthandler.dump_traceback_later(PEER_LIMIT_S, exit=True)
    try:
        return action()
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # whatever one peer raises, the others are still measured
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        try:
            torch.cuda.synchronize()
        except RuntimeError as broken:
            raise BrokenContextError(f"{name}: {reason}") from broken
        return reason
    finally:
        faulthandler.cancel_dump_traceback_later()


def time_all(implementations: Mapping[str, CapturedGraph]) -> dict[str, list[float]]:
    """Times in us of one call, round by round, with the implementations taking turns."""
    repeats = {name: max(1, round(ROUND_MS / mean_ms(result.replay, 2))) for name, result in implementations.items()}
    times: dict[str, list[float]] = {name: [] for name in implementations}
    for _ in range(ROUNDS):
        for name, result in implementations.items():
            result.replay()  # evicts from the cache what the one before left there
            times[name].append(mean_ms(result.replay, repeats[name]) * 1e3 / result.calls)
    return times


def spread(times: Sequence[float]) -> float:
    """The distance between the 10th and the 90th percentile."""
    deciles = statistics.quantiles(times, n=10)
    return deciles[-1] - deciles[0]


def run_case(case: Case, peers: Mapping[str, Prepare], left_out: Mapping[str, str], *, warm: bool, say: Say) -> Any:
    """Checks and times everything on one case; returns its record."""
    problem = make_problem(case, warm=warm)
    truth = plain_attention(problem, torch.float64)
    reference_error = max_error(plain_attention(problem, torch.float16), truth)
    tolerance = max(reference_error, ERROR_FLOOR)
    say(f"{case.name}: {case.tokens} tokens, {len(problem.inputs)} input sets")

    implementations: dict[str, CapturedGraph] = {}
    reasons = dict(left_out)
    for name, make in {"ours": ours, **peers}.items():
        if name in reasons:
            continue
        allowed = tolerance * (MAX_ERROR_RATIO if name == "ours" else WRONG_RATIO)

        def action(make: Prepare = make, allowed: float = allowed, name: str = name) -> CapturedGraph:
            return prepare(make, problem, truth, allowed, repeats=name == "ours")

        result = attempt(name, action)
        if isinstance(result, CapturedGraph):
            implementations[name] = result
        else:
            reasons[name] = result
            say(f"  {name}: {result}")
    times = time_all(implementations)
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers_us = {name: round(value, 3) for name, value in medians.items() if name != "ours"}
    ours_us = medians.get("ours")
    targets = [target.verdict(ours_us, peers_us) for target in case.targets] if ours_us else []
    required = [target["met"] for target in targets if not target["stretch"]]
    record = {
        "case": case.name,
        "heads": case.heads,
        "kv_heads": case.kv_heads or case.heads,
        "head_size": case.head_size,
        "batch": len(case.lengths),
        "tokens": case.tokens,
        "longest": case.longest,
        "kernel": case.kernel,
        "l2": "warm" if warm else "cold",
        "input_sets": len(problem.inputs),
        "ours_us": round(ours_us, 3) if ours_us else None,
        "peers_us": peers_us,
        "spread_us": {name: round(spread(values), 3) for name, values in times.items()},
        "tflops": round(case.flops / ours_us / 1e6, 1) if ours_us else None,
        "bytes_moved": case.bytes_moved,
        "max_error": implementations["ours"].error if "ours" in implementations else None,
        "reference_error": reference_error,
        "peers_error": {name: output.error for name, output in implementations.items() if name != "ours"},
        "unavailable": reasons,
        "targets": targets,
        "passed": bool(ours_us) and all(required),
    }
    for name, value in sorted(medians.items(), key=lambda item: item[1]):
        say(f"  {name:28s} {value:10.2f} us  +- {spread(times[name]):.2f}")
    return record
