# SPDX-License-Identifier: Apache-2.0
"""The GEMM benchmarks' records as the tables of docs/internals/linear.md, linear-e4m3.md and linear-general.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CUBLAS = ("cublas addmm", "cublas addmm, transposed weight")
"""cuBLAS with the bias and without activation, for both orders of the weight."""
FUSED = "cublaslt addmm with tanh-gelu"
HEADINGS = (
    "T x K x N",
    "padfree, us",
    "TFLOP/s",
    "by the cost model alone, us",
    "cuBLAS, us",
    "cuBLASLt with GELU, us",
)


SHOWN = {"small": (4802,), "base": (128, 1403, 4802), "large": (7579,)}
"""Numbers of tokens that the page shows, by the size of the model; the records have more."""
SIZES = {384: "small", 768: "base", 1024: "large"}


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the page shows a record."""
    width = min(record["depth"], record["features"]) if "depth" in record else None
    size = record["case"].split(",")[0] if width is None else SIZES.get(width, "")
    return record["tokens"] in SHOWN.get(size, ())


def cells(record: Mapping[str, Any]) -> list[str]:
    """One row: a GEMM, or the sum or chain of a layer's GEMMs, which have no sizes or choices."""
    times: Mapping[str, float] = record["times_us"]
    ours, cublas = times["padfree"], [time for name, time in times.items() if name in (*CUBLAS, "cublas")]
    tflops = f"{2e-6 * record['tokens'] * record['depth'] * record['features'] / ours:.0f}" if "depth" in record else ""
    model, fused = times.get("model"), times.get(FUSED)
    return [
        record["case"],
        f"{ours:.2f}",
        tflops,
        "" if model is None else f"{model:.2f}",
        f"{min(cublas):.2f}",
        "" if fused is None else f"{fused:.1f}",
    ]


E4M3_HEADINGS = ("T x K x N", "padfree, us", "TFLOP/s", "the same in fp16, us", "cuBLASLt, GEMM alone, us")


def e4m3_cells(record: Mapping[str, Any]) -> list[str]:
    """One row for GEMMs of e4m3: a GEMM, or the chain of a layer's."""
    times: Mapping[str, float] = record["times_us"]
    ours = times["padfree"]
    tflops = f"{2e-6 * record['tokens'] * record['depth'] * record['features'] / ours:.0f}" if "depth" in record else ""
    others = (f"{times[name]:.2f}" if name in times else "" for name in ("padfree fp16", "cublaslt e4m3"))
    return [record["case"], f"{ours:.2f}", tflops, *others]


MMA_HEADINGS = ("T x K x N", "padfree, us", "TFLOP/s", "its fastest tile, us", "CUTLASS for sm_80, us", "ratio")


def mma_cells(record: Mapping[str, Any]) -> list[str]:
    """One row for the kernels on mma.sync: a GEMM beside CUTLASS's fastest tile."""
    times: Mapping[str, float] = record["times_us"]
    ours = times["chosen"]
    tile, cutlass = (
        min(time for name, time in times.items() if name.startswith(prefix)) for prefix in ("tile", "cutlass")
    )
    tflops = f"{2e-6 * record['tokens'] * record['depth'] * record['features'] / ours:.0f}"
    return [record["case"], f"{ours:.2f}", tflops, f"{tile:.2f}", f"{cutlass:.2f}", f"{cutlass / ours:.2f}"]
