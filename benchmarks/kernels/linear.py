# SPDX-License-Identifier: Apache-2.0
"""PadfreeLinear on a GPU beside cuBLAS (through PyTorch): checked first, then timed, in one process.

    python -m benchmarks.kernels.linear --json benchmarks/results/h200/linear.jsonl

Every implementation runs in a CUDA graph. Weights rotate past the L2 cache, as those of a model's layers do; the
input and the output stay where the GEMM before left them. ours: as measureLinear() chose while an engine would be
built; model: as chosen by the cost model. --tilings: every tiling as well. The sum is of a layer's GEMMs; the chain
is the four of them one after the other on each other's output, layer after layer, in one graph.
Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from padfree.builder.bench.environment import append_record, environment
from padfree.builder.peers.timing import capture, mean_ms

from benchmarks.command import json_parser
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
SIDES = (1, 2, 4)
CLUSTERS = [(f, t, parts) for f in SIDES for t in SIDES for parts in SIDES if f * t * parts <= 8]
TILINGS = [
    (tokens, *cluster) for cluster in CLUSTERS for tokens in range(256, 0, -16) if tokens % (8 * cluster[0]) == 0
]
AUTO = (0, 0, 0, 0)
CHAIN_LAYERS = 12

Tiling = tuple[int, int, int, int]

Launch = Callable[[int], object]
"""Runs one GEMM with the weight of this number."""


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
        y = torch.addmm(self.bias.double(), self.x.double(), self.weights[0].double())
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


def measure(case: Case, dtype: torch.dtype, *, every_tiling: bool) -> dict[str, object]:
    """Checks and times everything for one case."""
    problem = make_problem(case, dtype)
    truth = problem.truth()
    plain = torch.addmm(problem.bias, problem.x, problem.weights[0])
    if case.activation == "gelu":
        plain = torch.nn.functional.gelu(plain)
    allowed = MAX_ERROR_RATIO * error(plain, truth)
    calls = len(problem.weights)
    times: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, launch in peers(problem):
        times[name], spreads[name] = time_us(launch, calls)
    chosen = choose(case, dtype)
    candidates = [("padfree", chosen), ("model", AUTO)]
    if every_tiling:
        candidates += [(f"padfree {tiling[0]} / {tiling[1]}x{tiling[2]}x{tiling[3]}", tiling) for tiling in TILINGS]
    for name, tiling in candidates:
        launch = ours(problem, tiling)
        problem.y.fill_(float("nan"))
        launch(0)
        result = error(problem.y, truth)
        if not result <= allowed:
            raise SystemExit(f"{case.name}, tiling {tiling}: error {result:.2e} > {allowed:.2e}")
        times[name], spreads[name] = time_us(launch, calls)
    return {
        "case": case.name,
        "tokens": case.tokens,
        "depth": case.depth,
        "features": case.features,
        "activation": case.activation,
        "chosen": chosen,
        "type": str(dtype).removeprefix("torch."),
        "times_us": {name: round(time, 3) for name, time in times.items()},
        "spreads_us": {name: round(spread, 3) for name, spread in spreads.items()},
    }


def summary(record: dict[str, object]) -> str:
    """One line: cuBLAS, ours, the best tilings."""
    times = record["times_us"]
    assert isinstance(times, dict)
    cublas = {name: time for name, time in times.items() if name.startswith("cublas")}
    tilings = sorted((time, name) for name, time in times.items() if name.startswith("padfree "))
    flops = 2.0 * float(str(record["tokens"])) * float(str(record["depth"])) * float(str(record["features"]))
    best = min(cublas.values())
    line = f"{record['case']:32s} ours {times['padfree']:8.2f} us ({flops / times['padfree'] / 1e6:4.0f} TFLOP/s)"
    line += (
        f"  model {times['model']:8.2f}  cublas {best:8.2f} ({', '.join(f'{time:.2f}' for time in cublas.values())})"
    )
    return line + "".join(f"  {name.removeprefix('padfree ')}: {time:.2f}" for time, name in tilings[:4])


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

    times = {}
    for name, gemm in (("cublas", cublas), ("padfree", padfree)):
        replay = capture(functools.partial(run, gemm))
        replay()
        times[name] = 1e3 * statistics.median(mean_ms(replay, 1) for _ in range(ROUNDS)) / CHAIN_LAYERS
    return times


def sums(records: list[dict[str, object]]) -> dict[str, float]:
    """A layer's GEMMs, each at its fastest, without the time of an activation that cuBLAS leaves to another kernel."""
    total = {"cublas": 0.0, "padfree": 0.0}
    for record in records:
        times = record["times_us"]
        assert isinstance(times, dict)
        total["cublas"] += min(time for name, time in times.items() if name.startswith("cublas addmm"))
        total["padfree"] += times["padfree"]
    return total


def main() -> int:
    """Measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES), help="whose GEMMs")
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS), help="T")
    parser.add_argument("--type", default="float16", choices=["float16", "bfloat16"], help="of every tensor")
    parser.add_argument("--tilings", action="store_true", help="every tiling as well as the chosen one")
    arguments = parser.parse_args()
    about = environment()
    dtype = getattr(torch, arguments.type)
    for model in arguments.models:
        for tokens in arguments.tokens:
            cases = [Case(tokens, *gemm) for gemm in SHAPES[model]]
            records = []
            for case in cases:
                records.append(measure(case, dtype, every_tiling=arguments.tilings))
                print(summary(records[-1]), flush=True)
            for kind, times in (("sum", sums(records)), ("chain", chain(cases, dtype))):
                name = f"{model}, {tokens} tokens, {kind}"
                print(f"{name:32s} ours {times['padfree']:8.2f} us  cublas {times['cublas']:8.2f}", flush=True)
                records.append({"case": name, "tokens": tokens, "times_us": times, "type": arguments.type})
            if arguments.json:
                for record in records:
                    append_record(arguments.json, {**record, **about})
    return 0


if __name__ == "__main__":
    sys.exit(main())
