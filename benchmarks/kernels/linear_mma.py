# SPDX-License-Identifier: Apache-2.0
r"""The GEMM kernels for GPUs other than Hopper, on a Hopper GPU, beside CUTLASS's tiles for sm_80 and cuBLAS.

    python -m benchmarks.kernels.linear_mma --cutlass libcutlass_sm80.so --json benchmarks/results/h200/linear_mma.jsonl

chosen: the tiling that the library takes; tile 0, 1, ...: each of plugins/linear/mma/menu.h, with the number of blocks
that share it where there are several. cuBLAS has Hopper's own kernels, and shows only what the GPU can do. CUTLASS
computes GELU by erf, as padfree does; "no GELU: cutlass ..." does not. The first record is the rate of mma.sync itself.
Padfree's and CUTLASS's results are checked first; everything runs in a CUDA graph whose weights rotate past the L2
cache, and is timed in turns, in one process. Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY; the other
library is compiled with CUTLASS's headers, which the wheel nvidia-cutlass has:

    nvcc -std=c++17 -O3 --expt-relaxed-constexpr -Xcompiler=-fPIC -shared -arch=sm_90a -I CUTLASS/include \
        benchmarks/kernels/cutlass_sm80.cu -o libcutlass_sm80.so
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from pathlib import Path

import torch
from padfree.builder.peers.timing import capture

from benchmarks.command import json_parser, keep
from benchmarks.event_timing import mean_ms
from tests.support.launchers import MMA, MMA_TAIL, MMA_TILES, NoKernel

from .linear import DEVICE, SHAPES, Case, Launch, Problem, Result, make_problem, ours, peers, times_of

TOKENS = (128, 1403, 4802)
ROUNDS = 5
CUTLASS_TILES = 9
MAX_PARTS = 8
PEAKS = (("fp16, sums in fp32", 16), ("fp16", 16), ("s8", 32), ("bf16, sums in fp32", 16))
"""What the library measures, with the depth of one instruction."""
PEAK_LOOPS, PEAK_PRODUCTS, PEAK_WARPS = 4000, 16, 8
"""Loops of each warp, products of a loop, and warps of each block (cutlass_sm80.cu)."""


def stream() -> ctypes.c_void_p:
    """PyTorch's current one."""
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def peak(library: ctypes.CDLL, kind: int, depth: int) -> float:
    """Tera-operations per second of mma.sync alone."""
    blocks = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    nowhere = torch.zeros(4, device=DEVICE)

    def work() -> None:
        if library.mmaPeak(kind, blocks, PEAK_LOOPS, ctypes.c_void_p(nowhere.data_ptr()), stream()) != 0:
            raise RuntimeError("mma.sync alone did not run")

    replay = capture(work)
    replay()
    ms = statistics.median(mean_ms(replay, 1) for _ in range(ROUNDS))
    return 2e-9 * float(blocks) * PEAK_WARPS * PEAK_LOOPS * PEAK_PRODUCTS * 16 * 8 * depth / ms


def cutlass(library: ctypes.CDLL, problem: Problem, tile: int, gelu: bool) -> Launch:
    """One of CUTLASS's tiles, with the bias, and GELU if wanted."""
    case = problem.case

    def launch(i: int) -> object:
        operands = (problem.x, problem.weights[i], problem.bias, problem.y)
        pointers = [ctypes.c_void_p(operand.data_ptr()) for operand in operands]
        status = library.cutlassLinear(tile, gelu, *pointers, case.tokens, case.depth, case.features, stream())
        if status != 0:
            raise RuntimeError(f"CUTLASS's tile {tile} returned {status}")
        return problem.y

    return launch


def launches(problem: Problem, library: ctypes.CDLL | None) -> dict[str, Launch]:
    """Everything that is timed, by name."""
    result = {"chosen": ours(problem, MMA)}
    for number, tile in enumerate(MMA_TILES):
        result |= {
            f"tile {number}" + (f" / {parts}" if parts > 1 else ""): ours(problem, (*tile[:3], parts))
            for parts in (*range(1, MAX_PARTS + 1), MMA_TAIL)
        }
    if library is not None:
        gelu = problem.case.activation == "gelu"
        result |= {f"cutlass {tile}": cutlass(library, problem, tile, gelu) for tile in range(CUTLASS_TILES)}
        if gelu:
            result |= {
                f"no GELU: cutlass {tile}": cutlass(library, problem, tile, gelu=False) for tile in range(CUTLASS_TILES)
            }
    return result | dict(peers(problem))


def measure(case: Case, library: ctypes.CDLL | None) -> Result:
    """Checks and times everything for one case."""
    problem = make_problem(case, torch.float16)
    truth = problem.truth()
    calls = len(problem.weights)
    replays = {}
    for name, launch in launches(problem, library).items():
        problem.y.fill_(float("nan"))
        try:
            launch(0)
        except NoKernel:
            continue
        if name.startswith(("chosen", "tile", "cutlass")):
            problem.check(name, truth)

        def all_calls(launch: Launch = launch) -> None:
            for i in range(calls):
                launch(i)

        replays[name] = capture(all_calls)
        replays[name]()
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            times[name].append(1e3 * mean_ms(replay, 1) / calls)
    return {
        **case.record(),
        "times_us": {name: round(statistics.median(each), 3) for name, each in times.items()},
    }


def summary(record: Result) -> str:
    """One line: the chosen tile, the best of ours, of CUTLASS's and of cuBLAS."""
    times = times_of(record)

    def best(prefix: str) -> str:
        found = sorted((time, name) for name, time in times.items() if name.startswith(prefix))
        return f"{found[0][0]:8.2f} ({found[0][1]})" if found else ""

    return f"{record['case']:28s} chosen {times['chosen']:8.2f} " + " ".join(map(best, ("tile", "cutlass", "cublas")))


def main() -> int:
    """Measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES), help="whose GEMMs")
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS), help="T")
    parser.add_argument("--cutlass", type=Path, help="the library of cutlass_sm80.cu")
    arguments = parser.parse_args()
    library = ctypes.CDLL(str(arguments.cutlass.resolve())) if arguments.cutlass else None
    if library is not None:
        peaks = {name: round(peak(library, kind, depth), 1) for kind, (name, depth) in enumerate(PEAKS)}
        print(f"mma.sync alone, tera-operations per second: {peaks}", flush=True)
        keep(arguments.json, {"case": "mma.sync alone", "tera_operations_per_s": peaks})
    for tokens in arguments.tokens:
        for model in arguments.models:
            for gemm in SHAPES[model]:
                record = measure(Case(tokens, *gemm), library)
                print(summary(record), flush=True)
                keep(arguments.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
