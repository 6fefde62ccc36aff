# SPDX-License-Identifier: Apache-2.0
"""PadfreeLinear on a GPU beside cuBLAS (through PyTorch): checked first, then timed, in one process.

    python -m benchmarks.kernels.linear --json benchmarks/results/h200/linear.jsonl

Every implementation runs in a CUDA graph. Weights rotate past the L2 cache, as those of a model's layers do; the
input and the output stay where the GEMM before left them. ours: as measureLinear() chose while an engine would be
built; model: as chosen by the cost model. The sum is of a layer's GEMMs; the chain is the four of them one after the
other on each other's output, layer after layer, in one graph.
Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from padfree.builder.peers.timing import capture

from benchmarks.command import json_parser, keep
from benchmarks.event_timing import mean_ms
from tests.support.launchers import linear, measured_tilings

DEVICE = "cuda"
CACHE_MULTIPLE = 2
"""Together the weights have this multiple of the L2 cache's size."""
MIN_CALLS = 24
ROUNDS = 7
MAX_ERROR_RATIO = 2.0
"""Our error may be at most this multiple of that of cuBLAS in the same type."""
TOKENS = (128, 1403, 4802, 7579)
SHAPES = {
    "base": ((768, 2304, "none"), (768, 768, "none"), (768, 3072, "gelu"), (3072, 768, "none")),
    "large": ((1024, 3072, "none"), (1024, 1024, "none"), (1024, 4096, "gelu"), (4096, 1024, "none")),
    "small": ((384, 1152, "none"), (384, 384, "none"), (384, 1536, "gelu"), (1536, 384, "none")),
}
AUTO = (0, 0, 0, 0)
CHAIN_LAYERS = 12

Tiling = tuple[int, int, int, int]

Launch = Callable[[int], object]
"""Runs one GEMM with the weight of this number."""
Result = dict[str, object]
"""What is recorded of a GEMM, or of a layer's."""


@dataclass(frozen=True)
class Case:
    """y [tokens, features] = activation(x [tokens, depth] @ weight [depth, features] + bias)."""

    tokens: int
    depth: int
    features: int
    activation: str

    @property
    def name(self) -> str:
        """Sizes and activation."""
        suffix = "" if self.activation == "none" else f" {self.activation}"
        return f"{self.tokens} x {self.depth} x {self.features}{suffix}"

    def record(self) -> Result:
        """What every record of the case has."""
        return {"case": self.name, **asdict(self)}


@dataclass(frozen=True)
class Problem:
    """Inputs of a case, with enough weights to fill the cache several times."""

    case: Case
    x: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    transposed: tuple[torch.Tensor, ...]
    bias: torch.Tensor
    y: torch.Tensor

    def truth(self) -> torch.Tensor:
        """The result in float64, with the first weight."""
        return self._activate(torch.addmm(self.bias.double(), self.x.double(), self.weights[0].double()))

    def check(self, name: str, truth: torch.Tensor) -> None:
        """Ends the program unless y, made with the first weight, is about as near to the truth as cuBLAS's result."""
        plain = self._activate(torch.addmm(self.bias, self.x, self.weights[0]))
        result, allowed = error(self.y, truth), MAX_ERROR_RATIO * error(plain, truth)
        if not result <= allowed:
            raise SystemExit(f"{self.case.name}, {name}: error {result:.2e} > {allowed:.2e}")

    def _activate(self, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(y) if self.case.activation == "gelu" else y


def make_problem(case: Case, dtype: torch.dtype) -> Problem:
    """Random inputs with a fixed seed."""
    generator = torch.Generator(device=DEVICE).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=DEVICE) * scale).to(dtype)

    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(MIN_CALLS, -(-CACHE_MULTIPLE * cache_bytes // (2 * case.depth * case.features)))
    weights = tuple(normal(case.depth, case.features, scale=case.depth**-0.5) for _ in range(count))
    return Problem(
        case,
        normal(case.tokens, case.depth),
        weights,
        tuple(weight.t().contiguous() for weight in weights),
        normal(case.features),
        torch.empty(case.tokens, case.features, dtype=dtype, device=DEVICE),
    )


def ours(problem: Problem, tiling: Tiling) -> Launch:
    """PadfreeLinear with one tiling, or as it chooses."""
    case = problem.case

    def launch(i: int) -> object:
        linear(problem.x, problem.weights[i], problem.y, bias=problem.bias, activation=case.activation, tiling=tiling)
        return problem.y

    return launch


def peers(problem: Problem) -> Iterator[tuple[str, Launch]]:
    """cuBLAS with the weight in ONNX's and in PyTorch's order, without activation; cuBLASLt with tanh-GELU."""
    x, y, bias = problem.x, problem.y, problem.bias

    def addmm(i: int) -> object:
        return torch.addmm(bias, x, problem.weights[i], out=y)

    def addmm_transposed(i: int) -> object:
        return torch.addmm(bias, x, problem.transposed[i].t(), out=y)

    def fuse(i: int) -> object:
        return torch._addmm_activation(bias, x, problem.transposed[i].t(), use_gelu=True)

    yield "cublas addmm", addmm
    yield "cublas addmm, transposed weight", addmm_transposed
    if problem.case.activation == "gelu":
        yield "cublaslt addmm with tanh-gelu", fuse


def time_us(launch: Launch, calls: int) -> tuple[float, float]:
    """Median and spread (half the range) of the time of one call."""

    def all_calls() -> None:
        for i in range(calls):
            launch(i)

    replay = capture(all_calls)
    replay()
    times = [1e3 * mean_ms(replay, 1) / calls for _ in range(ROUNDS)]
    return statistics.median(times), (max(times) - min(times)) / 2


def choose(case: Case, dtype: torch.dtype) -> Tiling:
    """The tiling that an engine would take from its table at this T."""
    [(_, tiling)] = measured_tilings(case.depth, case.features, case.activation, dtype, case.tokens, case.tokens)
    return tiling


def error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative error in norm."""
    return float((result.double() - truth).norm() / truth.norm())


def measure(case: Case, dtype: torch.dtype) -> Result:
    """Checks and times everything for one case."""
    problem = make_problem(case, dtype)
    truth = problem.truth()
    chosen = choose(case, dtype)
    launches = {**dict(peers(problem)), "padfree": ours(problem, chosen), "model": ours(problem, AUTO)}
    times: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, launch in launches.items():
        if name in ("padfree", "model"):
            problem.y.fill_(float("nan"))
            launch(0)
            problem.check(name, truth)
        time, spread = time_us(launch, len(problem.weights))
        times[name], spreads[name] = round(time, 3), round(spread, 3)
    kind = str(dtype).removeprefix("torch.")
    return {**case.record(), "chosen": chosen, "type": kind, "times_us": times, "spreads_us": spreads}


def speed(record: Result, width: int) -> str:
    """The beginning of a line about a GEMM: its name and our time."""
    ours_us = times_of(record)["padfree"]
    flops = 2.0 * float(str(record["tokens"])) * float(str(record["depth"])) * float(str(record["features"]))
    return f"{record['case']:{width}s} ours {ours_us:8.2f} us ({flops / ours_us / 1e6:4.0f} TFLOP/s)"


def times_of(record: Result) -> dict[str, float]:
    """Microseconds by implementation."""
    times = record["times_us"]
    assert isinstance(times, dict)
    return times


def summary(record: Result) -> str:
    """One line: ours, and cuBLAS."""
    times = times_of(record)
    cublas = [time for name, time in times.items() if name.startswith("cublas")]
    shown = ", ".join(f"{time:.2f}" for time in cublas)
    return f"{speed(record, 32)}  model {times['model']:8.2f}  cublas {min(cublas):8.2f} ({shown})"


def chain(cases: list[Case], dtype: torch.dtype) -> dict[str, float]:
    """Time of a layer's GEMMs in a graph of layers in which each reads the previous one's output, as in an engine.

    cuBLAS's time is without the activation.
    """
    tokens = cases[0].tokens

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=DEVICE).to(dtype)

    layers = [[normal(c.depth, c.features) * c.depth**-0.5 for c in cases] for _ in range(CHAIN_LAYERS)]
    biases = [torch.zeros(c.features, dtype=dtype, device=DEVICE) for c in cases]
    outputs = [torch.empty(tokens, c.features, dtype=dtype, device=DEVICE) for c in cases]
    tilings = [choose(c, dtype) for c in cases]
    first = normal(tokens, cases[0].depth)

    def run(gemm: Callable[[torch.Tensor, torch.Tensor, int], object]) -> None:
        x = first
        for weights in layers:
            for i, (case, weight) in enumerate(zip(cases, weights, strict=True)):
                gemm(x.view(-1)[: tokens * case.depth].view(tokens, case.depth), weight, i)
                x = outputs[i]

    def cublas(x: torch.Tensor, weight: torch.Tensor, i: int) -> None:
        torch.addmm(biases[i], x, weight, out=outputs[i])

    def padfree(x: torch.Tensor, weight: torch.Tensor, i: int) -> None:
        linear(x, weight, outputs[i], bias=biases[i], activation=cases[i].activation, tiling=tilings[i])

    return {name: layer_us(functools.partial(run, gemm)) for name, gemm in (("cublas", cublas), ("padfree", padfree))}


def layer_us(run: Callable[[], object]) -> float:
    """Microseconds of one of the CHAIN_LAYERS that `run` enqueues."""
    replay = capture(run)
    replay()
    return 1e3 * statistics.median(mean_ms(replay, 1) for _ in range(ROUNDS)) / CHAIN_LAYERS


def sums(records: list[Result]) -> dict[str, float]:
    """A layer's GEMMs, each at its fastest, without the time of an activation that cuBLAS leaves to another kernel."""
    total = {"cublas": 0.0, "padfree": 0.0}
    for times in map(times_of, records):
        total["cublas"] += min(time for name, time in times.items() if name.startswith("cublas addmm"))
        total["padfree"] += times["padfree"]
    return total


def layer_record(model: str, tokens: int, kind: str, times: dict[str, float], dtype: str) -> Result:
    """What is recorded of all GEMMs of a layer, which it prints."""
    name = f"{model}, {tokens} tokens, {kind}"
    print(f"{name:32s}", *(f"{what} {time:.2f}" for what, time in times.items()), flush=True)
    return {"case": name, "tokens": tokens, "times_us": times, "type": dtype}


MeasureLayer = Callable[[str, int, argparse.Namespace], Iterator[Result]]


def run_command(
    parser: argparse.ArgumentParser, models: list[str], usual: list[str], measure_layer: MeasureLayer
) -> int:
    """Measures the layers of models that the command line names, each with some numbers of tokens, and records them."""
    parser.add_argument("--models", nargs="*", default=usual, choices=models, help="whose GEMMs")
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS), help="T")
    arguments = parser.parse_args()
    for model in arguments.models:
        for tokens in arguments.tokens:
            for record in measure_layer(model, tokens, arguments):
                keep(arguments.json, record)
    return 0


def measure_layer(model: str, tokens: int, arguments: argparse.Namespace) -> Iterator[Result]:
    """Prints and gives the GEMMs of a layer, their sum and their chain."""
    dtype = getattr(torch, arguments.type)
    cases = [Case(tokens, *gemm) for gemm in SHAPES[model]]
    records = []
    for case in cases:
        records.append(measure(case, dtype))
        print(summary(records[-1]), flush=True)
        yield records[-1]
    for kind, times in (("sum", sums(records)), ("chain", chain(cases, dtype))):
        yield layer_record(model, tokens, kind, times, arguments.type)


def main() -> int:
    """Measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--type", default="float16", choices=["float16", "bfloat16"], help="of every tensor")
    return run_command(parser, list(SHAPES), list(SHAPES), measure_layer)


if __name__ == "__main__":
    sys.exit(main())
