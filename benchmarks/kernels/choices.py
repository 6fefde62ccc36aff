# SPDX-License-Identifier: Apache-2.0
"""Which tilings PadfreeLinear's GEMMs take on a GPU, and what the next best cost.

    python -m benchmarks.kernels.choices --seconds 200 --json choices.jsonl
    python -m benchmarks.kernels.choices_report choices.jsonl

For every GEMM of the families of encoders and many token counts, the tilings that the cost model puts first are
timed as a build times them, and for each size of a tile the cheapest of them, alone and shared, too. A line of JSON
holds a GEMM and a token count with the time of every choice. --seconds ends it where time is short: target cases
come first. Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY, and torch.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.support import launchers

from .choice_gemms import Gemm, gemms
from .choices_report import kind_of

DEVICE = "cuda"
FIRST = 6
"""How many tilings of the cost model's ranking are timed; a build tries five."""
OF_A_SIZE = 2
"""How many are timed per kind: tokens of a tile, and whether it is shared or has resident input."""
AGAIN = 5
"""How many of the fastest are timed once more; the smaller of both times counts."""
LAUNCHES = 24
CACHE_MULTIPLE = 2
GROUP = 64
TARGET_TOKENS = (4802, 1403, 128, 512, 32, 7579)
MORE_TOKENS = (16, 48, 64, 96, 192, 256, 384, 768, 1024, 2048, 2816, 3584, 4096, 6144, 8192, 12288, 16384)
CAPACITY = 512
E4M3_TYPE = torch.float8_e4m3fn


class Problem:
    """A GEMM's tensors for up to `tokens` tokens, with weights that fill the L2 cache twice."""

    def __init__(self, gemm: Gemm, tokens: int) -> None:
        depth, features, half = gemm.depth, gemm.features, torch.float16
        operand = E4M3_TYPE if gemm.results else half
        properties = torch.cuda.get_device_properties(0)
        self.gemm = gemm
        self.multiprocessors = properties.multi_processor_count
        self.weight_bytes = depth * features * operand.itemsize
        self.weights = min(-(-CACHE_MULTIPLE * properties.L2_cache_size // self.weight_bytes), LAUNCHES)
        self.tensors: dict[str, torch.Tensor] = {
            "x": _normal(tokens, depth).to(operand),
            "weight": (_normal(self.weights, depth, features) * depth**-0.5).to(operand),
            "bias": _normal(features).to(half),
        }
        if gemm.results:
            self.tensors["scale"] = torch.full((features,), 0.5, device=DEVICE)
        if not gemm.results or "y" in gemm.results:
            self.tensors["y"] = torch.empty(tokens, gemm.width, dtype=half, device=DEVICE)
        if "y_e4m3" in gemm.results:
            self.tensors["y_e4m3"] = torch.empty(tokens, gemm.width, dtype=E4M3_TYPE, device=DEVICE)
        if gemm.adds:
            self.tensors["residual"] = _normal(tokens, features).to(half)
        if "residual" in gemm.norms:
            self.tensors["residual_scale"] = _normal(features).to(half)
        names = (("x", "x_moments", depth), ("residual", "residual_moments", features), ("y", "moments", features))
        for norm, name, width in names:
            if norm in gemm.norms:
                self.tensors[name] = _normal(width // GROUP, tokens, 2).abs()
        if gemm.rotary_features:
            self.tensors["positions"] = torch.arange(tokens, device=DEVICE, dtype=torch.int32) % 512
            self.tensors["frequencies"] = torch.full((gemm.rotary_features // 2,), 0.01, device=DEVICE)

    def call(self, tokens: int) -> launchers.LinearCall:
        """The parameters for this many tokens."""
        gemm = self.gemm
        return launchers.LinearCall(
            **{name: tensor.data_ptr() for name, tensor in self.tensors.items()},
            T=tokens, K=gemm.depth, N=gemm.features, rotary_features=gemm.rotary_features,
            x_epsilon=1e-5, residual_epsilon=1e-5, y_scale=1.0, activation=launchers.ACTIVATIONS[gemm.activation],
            gated=int(gemm.gated), rms=0, type=launchers.DATA_TYPES[torch.float16],
        )  # fmt: skip

    def ranked_choices(self, tokens: int) -> list[int]:
        """All choices, the cheapest in the cost model first."""
        choices, count = (ctypes.c_int * CAPACITY)(), ctypes.c_int()
        call = self.call(tokens)
        library = launchers.library()
        library.padfreeRankLinear(ctypes.byref(call), self.multiprocessors, CAPACITY, choices, ctypes.byref(count))
        if count.value > CAPACITY:
            raise RuntimeError(f"{count.value} tilings; allowed: {CAPACITY}")
        return list(choices[: count.value])

    def times_us(self, tokens: int, choices: list[int]) -> dict[int, float]:
        """The time of each choice, as a build measures it."""
        times = (ctypes.c_float * len(choices))()
        launches = max(4, LAUNCHES * 1024 // max(tokens, 1024))
        call = self.call(tokens)
        status = launchers.library().padfreeTimeLinear(
            ctypes.byref(call), self.weights, ctypes.c_int64(self.weight_bytes), launches, len(choices),
            (ctypes.c_int * len(choices))(*choices), times,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"padfreeTimeLinear returned CUDA error {status} for {self.gemm}, {tokens} tokens")
        return dict(zip(choices, times, strict=True))


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def candidates(ranked: list[int]) -> list[int]:
    """The cost model's first choices, and the first ones of every kind."""
    results = list(ranked[:FIRST])
    of_kind: dict[str, int] = {}
    for choice in ranked:
        kind = kind_of(choice)
        of_kind[kind] = of_kind.get(kind, 0) + 1
        if of_kind[kind] <= OF_A_SIZE and choice not in results:
            results.append(choice)
    return results


def cases() -> Iterator[tuple[Gemm, tuple[int, ...]]]:
    """GEMMs with token counts, those of the target cases first."""
    for tokens in (TARGET_TOKENS, MORE_TOKENS):
        for gemm in gemms():
            yield gemm, tokens


def measure(problem: Problem, tokens: int) -> dict[str, object]:
    """One line of the results."""
    ranked = problem.ranked_choices(tokens)
    times = problem.times_us(tokens, candidates(ranked))
    for choice, again in problem.times_us(tokens, sorted(times, key=times.__getitem__)[:AGAIN]).items():
        times[choice] = min(times[choice], again)
    return {
        **dataclasses.asdict(problem.gemm),
        "tokens": tokens,
        "first": ranked[:FIRST],
        "times_us": {choice: round(us, 3) for choice, us in times.items()},
        "gpu": torch.cuda.get_device_name(),
    }


def main() -> int:
    """Measures and writes; prints one line per GEMM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="start no GEMM after so many")
    parser.add_argument("--json", type=Path, required=True, help="write one line per GEMM and token count to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    start = time.monotonic()
    with arguments.json.open("w", encoding="utf-8") as file:
        for gemm, tokens in cases():
            seconds = time.monotonic() - start
            if seconds > arguments.seconds:
                print(f"stopped after {seconds:.0f} s, before {gemm}")
                break
            problem = Problem(gemm, max(tokens))
            for count in tokens:
                file.write(json.dumps(measure(problem, count)) + "\n")
            file.flush()
            print(f"{seconds:6.1f} s  {gemm}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
