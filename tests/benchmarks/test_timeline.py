# SPDX-License-Identifier: Apache-2.0
"""The account of a replay: shares sum to the whole, products are told apart, and incomplete records are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.engine.timeline_account import Kernel, account, family_of, kinds_of, replays_of

LINEAR = Path(__file__).parents[2] / "plugins" / "linear"

LAYER = ("linearKernel", "attentionKernel", "linearKernel", "normKernel", "linearKernel", "linearKernel", "normKernel")
KINDS = [
    "QKV product",
    "attention",
    "output product",
    "layer norm",
    "intermediate product, activation",
    "down product",
    "layer norm",
]


def replay(names: tuple[str, ...], times: list[tuple[float, float]]) -> list[Kernel]:
    return [Kernel(name, start, end) for name, (start, end) in zip(names, times, strict=True)]


def test_gemms_are_told_apart_by_their_neighbours() -> None:
    names = ("normKernel<TableSource>", *LAYER, "memset", *LAYER, "some_gemm", "pool")
    kinds = kinds_of([Kernel(name, i, i + 1.0) for i, name in enumerate(names)])
    assert kinds == ["embedding", *KINDS, "other", *KINDS, "product", "other"]


def test_gemms_are_told_apart_where_norms_are_folded() -> None:
    folded = [name for name in LAYER if name != "normKernel"]
    names = ("normKernel<TableSource>", *folded, *folded, "normKernel", "some_gemm")
    kinds = [kind for kind in KINDS if kind != "layer norm"]
    actual = kinds_of([Kernel(name, i, i + 1.0) for i, name in enumerate(names)])
    assert actual == ["embedding", *kinds, *kinds, "layer norm", "product"]


def test_every_kernel_of_a_gemm_is_known() -> None:
    sources = "".join(path.read_text() for path in LINEAR.rglob("*.cu*"))
    names = set(re.findall(r"__global__ void [^;{]*?(\w+Kernel)\(", sources))
    assert {"linearSm90Kernel", "residentSm90Kernel"} < names
    assert {family_of(Kernel(name, 0.0, 1.0)) for name in names} == {"product"}


def test_what_kernels_add_sums_to_the_run_gaps_and_overlap_included() -> None:
    kernels = replay(("linear", "attention", "norm"), [(0.0, 10.0), (8.0, 14.0), (17.0, 20.0)])
    table = account(kernels)
    assert sum(row["adds_us"] for row in table.values()) == 20
    assert table["attention"] == {"kernels": 1, "busy_us": 6, "adds_us": 4, "most_us": 4, "gap_us": 0}
    assert table["layer norm"] == {"kernels": 1, "busy_us": 3, "adds_us": 6, "most_us": 6, "gap_us": 3}


def test_a_kernel_inside_another_adds_nothing() -> None:
    table = account(replay(("linear", "attention", "norm"), [(0.0, 10.0), (2.0, 5.0), (10.0, 11.0)]))
    assert table["attention"]["adds_us"] == 0
    assert table["layer norm"]["adds_us"] == 1


def write_trace(path: Path, kernels: int) -> Path:
    events = [{"cat": "kernel", "name": f"k{i % 2}", "ts": 100.0 + 10 * i, "dur": 5.0} for i in range(kernels)]
    path.write_text(json.dumps({"traceEvents": [*events, {"cat": "cuda_runtime", "name": "cudaGraphLaunch"}]}))
    return path


def test_replays_begin_at_zero(tmp_path: Path) -> None:
    replays = replays_of(write_trace(tmp_path / "trace.json", 4), 2)
    assert replays[0] == replays[1] == [Kernel("k0", 0.0, 5.0), Kernel("k1", 10.0, 15.0)]


@pytest.mark.parametrize("kernels", [0, 5])
def test_an_incomplete_record_is_refused(tmp_path: Path, kernels: int) -> None:
    with pytest.raises(SystemExit, match=f"{kernels} kernels were recorded in 2 replays"):
        replays_of(write_trace(tmp_path / "trace.json", kernels), 2)
