# SPDX-License-Identifier: Apache-2.0
"""PadfreeLinear's GEMMs of e4m3 on a GPU beside cuBLASLt's, and beside padfree's own in fp16, in one process.

    python -m benchmarks.kernels.linear_e4m3 --json benchmarks/results/h200/linear_e4m3.jsonl

The four GEMMs of a layer of BERT with their epilogues: QKV and up norm what they read, up has GELU and gives
e4m3, out and down add a normed residual and give the sum in fp16 and in e4m3 with its moments. Two of an encoder are
others: the first out adds an embedding that is normed already, the last down gives its sum in fp16 alone. Those of
ModernBERT-base norm ahead of layers: QKV rotates pairs, up is gated, out and down add a residual as it is. cuBLASLt
(through torch._scaled_mm, one scale per tensor, fast accumulation) computes the GEMM and its rounding alone: up to
e4m3, the others to bf16. Weights rotate past the L2 cache in a CUDA graph; the chain is 12 layers in one graph, where
GEMMs read what those before wrote, the first out and the last down as an encoder has them; but attention's result
stands still. Answers are checked in tests/kernels/test_linear_e4m3.py. Needs libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.command import json_parser
from tests.support.launchers import E4m3, Moments, Rotation, linear, measured_tilings

from .linear import (
    AUTO,
    CACHE_MULTIPLE,
    CHAIN_LAYERS,
    DEVICE,
    MIN_CALLS,
    Launch,
    Result,
    Tiling,
    layer_record,
    layer_us,
    run_command,
    speed,
    time_us,
    times_of,
)

GROUP = HEAD_SIZE = 64
E4M3, TYPE = torch.float8_e4m3fn, "float8_e4m3fn"
HIDDEN = {"base": 768, "large": 1024, "small": 384}
MODERNBERT = "modernbert"
BOTH = ("y", "y_e4m3")
Y_SCALE = 2.0**-3


def rotation_of(tokens: int, features: int) -> Rotation:
    """Rotation for heads of HEAD_SIZE, in sequences of 512 tokens."""
    return Rotation(
        torch.arange(tokens, device=DEVICE, dtype=torch.int32) % 512,
        10000.0 ** -(torch.arange(features // 2, device=DEVICE) % (HEAD_SIZE // 2) / HEAD_SIZE * 2),
    )


@dataclass(frozen=True)
class Gemm:
    """One of a layer's GEMMs: its sizes, and what becomes of its sums."""

    name: str
    depth: int
    features: int
    activation: str = "none"
    norms: tuple[str, ...] = ()
    results: tuple[str, ...] = ("y",)
    adds: bool = False  # whether a residual is added
    gated: bool = False
    rotary_features: int = 0

    @property
    def width(self) -> int:
        """Features of the results."""
        return self.features // 2 if self.gated else self.features


def layer(hidden: int) -> tuple[Gemm, ...]:
    """The GEMMs of a layer of this width, in order."""
    return (
        Gemm("qkv", hidden, 3 * hidden, norms=("x",)),
        Gemm("out", hidden, hidden, norms=("residual", "y"), results=BOTH, adds=True),
        Gemm("up", hidden, 4 * hidden, "gelu", ("x",), ("y_e4m3",)),
        Gemm("down", 4 * hidden, hidden, norms=("residual", "y"), results=BOTH, adds=True),
    )


def modernbert() -> tuple[Gemm, ...]:
    """The GEMMs of a layer of ModernBERT-base, in order."""
    return (
        Gemm("rotated qkv", 768, 2304, norms=("x",), rotary_features=1536),
        Gemm("out to a stream", 768, 768, norms=("y",), results=BOTH, adds=True),
        Gemm("gated up", 768, 2304, "gelu", ("x",), ("y_e4m3",), gated=True),
        Gemm("down to a stream", 1152, 768, norms=("y",), results=BOTH, adds=True),
    )


def ends(hidden: int) -> tuple[Gemm, Gemm]:
    """An encoder's first out GEMM and its last down GEMM."""
    _, out, _, down = layer(hidden)
    return (
        dataclasses.replace(out, name="first out", norms=("y",)),
        dataclasses.replace(down, name="last down", norms=("residual",), results=("y",)),
    )


def normal(*shape: int) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*shape, device=DEVICE)


class Problem:
    """A GEMM's tensors in both types, with enough weights to fill the cache several times."""

    def __init__(self, gemm: Gemm, tokens: int, weights: int = 0) -> None:
        depth, features = gemm.depth, gemm.features
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        count = weights or max(MIN_CALLS, -(-CACHE_MULTIPLE * cache_bytes // (depth * features)))
        self.gemm = gemm
        self.x_half = normal(tokens, depth).half()
        self.x = (normal(tokens, depth) * 16).to(E4M3)
        self.half_weights = [(normal(depth, features) * depth**-0.5).half() for _ in range(count)]
        self.weights = [weight.t().mul(64).to(E4M3).contiguous() for weight in self.half_weights]
        self.scale = torch.full((features,), 2.0**-10, device=DEVICE)
        self.bias = normal(features).half()
        self.residual = normal(tokens, features).half() if gemm.adds else None
        self.y = self.x_half.new_empty(tokens, gemm.width)
        self.y_e4m3 = self.x.new_empty(tokens, gemm.width)
        self.rotation = rotation_of(tokens, gemm.rotary_features) if gemm.rotary_features else None
        self.moments = Moments(
            of_x=self._moments(tokens, depth, "x"),
            of_residual=self._moments(tokens, features, "residual"),
            residual_scale=normal(features).half() if "residual" in gemm.norms else None,
            out=self._moments(tokens, features, "y"),
        )
        self.one = torch.ones((), device=DEVICE)

    def _moments(self, tokens: int, width: int, of: str) -> torch.Tensor | None:
        return normal(width // GROUP, tokens, 2).abs() if of in self.gemm.norms else None

    def choose(self, *, in_half: bool = False) -> Tiling:
        """The tiling that an engine would take from its table at this T."""
        gemm, tokens = self.gemm, len(self.x)
        [(_, tiling)] = measured_tilings(
            gemm.depth, gemm.features, gemm.activation, torch.float16, tokens, tokens,
            residual=gemm.adds, gated=gemm.gated, rotary_features=gemm.rotary_features, norms=gemm.norms,
            e4m3=() if in_half else gemm.results,
        )  # fmt: skip
        return tiling

    def ours(self, tiling: Tiling, x: torch.Tensor | None = None) -> Launch:
        """Our GEMM in e4m3."""
        gemm, source = self.gemm, self.x if x is None else x
        results = E4m3(self.scale, self.y_e4m3 if "y_e4m3" in gemm.results else None, Y_SCALE)
        return lambda i: linear(
            source, self.weights[i], self.y if "y" in gemm.results else None, bias=self.bias,
            residual=self.residual, moments=self.moments, rotation=self.rotation, activation=gemm.activation,
            gated=gemm.gated, e4m3=results, tiling=tiling,
        )  # fmt: skip

    def in_half(self, tiling: Tiling, x: torch.Tensor | None = None) -> Launch:
        """Our GEMM in fp16."""
        source = self.x_half if x is None else x
        return lambda i: linear(
            source, self.half_weights[i], self.y, bias=self.bias, residual=self.residual, moments=self.moments,
            rotation=self.rotation, activation=self.gemm.activation, gated=self.gemm.gated, tiling=tiling,
        )  # fmt: skip

    def cublas(self, i: int, x: torch.Tensor | None = None) -> torch.Tensor:
        """cuBLASLt's GEMM, with its rounding and nothing else."""
        to_e4m3 = self.gemm.results == ("y_e4m3",)
        return torch._scaled_mm(
            self.x if x is None else x, self.weights[i].t(), self.one, self.one,
            scale_result=self.one if to_e4m3 else None, out_dtype=E4M3 if to_e4m3 else torch.bfloat16,
            use_fast_accum=True,
        )  # fmt: skip


def measure(gemm: Gemm, tokens: int) -> Result:
    """The times of all implementations for one GEMM."""
    problem = Problem(gemm, tokens)
    chosen = problem.choose()
    launches: dict[str, Launch] = {
        "padfree": problem.ours(chosen),
        "model": problem.ours(AUTO),
        "cublaslt e4m3": problem.cublas,
        "padfree fp16": problem.in_half(problem.choose(in_half=True)),
    }
    times: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, launch in launches.items():
        launch(0)
        time, spread = time_us(launch, len(problem.weights))
        times[name], spreads[name] = round(time, 3), round(spread, 3)
    return {
        "case": f"{tokens} x {gemm.depth} x {gemm.features} {gemm.name}",
        "tokens": tokens,
        "depth": gemm.depth,
        "features": gemm.features,
        "chosen": chosen,
        "type": TYPE,
        "times_us": times,
        "spreads_us": spreads,
    }


def chain(hidden: int, tokens: int) -> dict[str, float]:
    """Microseconds per layer, with many layers in one graph: each GEMM reads what the earlier ones wrote."""
    qkv, out, up, down = problems = [Problem(gemm, tokens, CHAIN_LAYERS) for gemm in layer(hidden)]
    first, last = (Problem(gemm, tokens, CHAIN_LAYERS) for gemm in ends(hidden))
    first.residual, first.y, first.y_e4m3 = down.y, out.y, out.y_e4m3
    first.moments = dataclasses.replace(first.moments, out=out.moments.out)
    for ahead, after, reader in ((down, out, qkv), (out, down, up), (out, last, up)):
        after.residual = ahead.y
        after.moments = dataclasses.replace(after.moments, of_residual=ahead.moments.out)
        reader.moments = dataclasses.replace(reader.moments, of_x=ahead.moments.out)
        ahead.y.copy_(ahead.y.normal_())
        ahead.y_e4m3.copy_(ahead.y)
    every = (*problems, first, last)
    in_e4m3 = [
        problem.ours(problem.choose(), x)
        for problem, x in zip(every, (down.y_e4m3, out.x, out.y_e4m3, up.y_e4m3, out.x, up.y_e4m3), strict=True)
    ]
    in_half = [
        problem.in_half(problem.choose(in_half=True), x)
        for problem, x in zip(every, (down.y, out.x_half, out.y, up.y, out.x_half, up.y), strict=True)
    ]

    def padfree(launches: list[Launch]) -> None:
        *of_layer, first_out, last_down = launches
        for i in range(CHAIN_LAYERS):
            qkv, out, up, down = of_layer
            for launch in (qkv, out if i else first_out, up, down if i < CHAIN_LAYERS - 1 else last_down):
                launch(i)

    def cublas() -> None:
        for i in range(CHAIN_LAYERS):
            qkv.cublas(i)
            out.cublas(i)
            down.cublas(i, up.cublas(i))

    runs: dict[str, Callable[[], None]] = {
        "padfree": functools.partial(padfree, in_e4m3),
        "padfree fp16": functools.partial(padfree, in_half),
        "cublaslt e4m3": cublas,
    }
    return {name: layer_us(run) for name, run in runs.items()}


def summary(record: Result) -> str:
    """One line: ours, cuBLASLt, and fp16."""
    times = times_of(record)
    line = f"{speed(record, 26)} {record['chosen']!s:16s} model {times['model']:7.2f}"
    return line + f" cublaslt {times['cublaslt e4m3']:7.2f} fp16 {times['padfree fp16']:7.2f}"


def measure_layer(model: str, tokens: int, _arguments: argparse.Namespace) -> Iterator[Result]:
    """Prints and gives the GEMMs of a layer, and their chain."""
    gemms = (*layer(HIDDEN[model]), *ends(HIDDEN[model])) if model in HIDDEN else modernbert()
    for gemm in gemms:
        record = measure(gemm, tokens)
        print(summary(record), flush=True)
        yield record
    if model in HIDDEN:
        yield layer_record(model, tokens, "chain", chain(HIDDEN[model], tokens), TYPE)


def main() -> int:
    """Measures, prints and records."""
    torch.manual_seed(0)
    return run_command(json_parser(__doc__), [*HIDDEN, MODERNBERT], ["base"], measure_layer)


if __name__ == "__main__":
    sys.exit(main())
