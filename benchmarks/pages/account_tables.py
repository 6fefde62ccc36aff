# SPDX-License-Identifier: Apache-2.0
"""Tables of where engines and sessions spend time and memory: GPU time by kind of kernel, memory, time on the host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Table = tuple[Sequence[str], Iterable[Sequence[str]]]
"""The head and the rows of a table; the first column is text, the others are numbers."""
OURS, PADDED = ", linear auto", ", padded interface"
"""Endings of the names of cases that are shown: engines with padfree's GEMMs, and with the padded interface."""
BEFORE = ", before"  # cases of another version of the code, measured in the same run
PADDED_LAYERS: Mapping[str, str] = {
    "waiting for the host (`trainStation`)": r"trainStation",
    "the number of tokens, copied to the host": r"DevicetoShapeHostCopy",
    "PadfreeIndex": r"PadfreeIndex",
    "PadfreePack, three inputs": r"PadfreePack",
    "PadfreeUnpack": r"PadfreeUnpack",
    "casts of 64-bit inputs, shapes": r"^__my(?!.*Fc)",
}
"""What the layers do, and patterns for their names; the first match counts."""


def timeline(records: Sequence[Record]) -> Table:
    """A row per kind of kernel, a column per batch: the us that it adds to a CUDA graph's replay."""
    kinds = dict.fromkeys(kind for record in records for kind in record["kinds"])

    def cell(record: Record, kind: str) -> str:
        row = record["kinds"].get(kind)
        if row is None:
            return "-"
        return f"{row['adds_us']:.1f} ({row['adds_us'] / record['replay_us']:.0%})"

    ordered = sorted(kinds, key=lambda kind: -max(r["kinds"].get(kind, {"adds_us": 0})["adds_us"] for r in records))
    rows = [[_in_words(kind), *(cell(record, kind) for record in records)] for kind in ordered]
    rows.append(["whole replay", *(f"{record['replay_us']:.1f}" for record in records)])
    rows.append(["the same without records", *(f"{record['replay_unprofiled_us']:.1f}" for record in records)])
    head = [
        "us added to the run",
        *(f"{record['case'].removesuffix(OURS)}, T {record['tokens']}" for record in records),
    ]
    return head, rows


def _in_words(kind: str) -> str:
    """The name that pages use for a record's kind of kernel: "product" in records is a GEMM on pages."""
    return "other GEMMs" if kind == "product" else kind.replace("product", "GEMM")


def memory(records: Sequence[Record]) -> Table:
    """A row per stream: MiB of padfree's blocks, and of TensorRT's default."""
    head = ["stream", "blocks, mean", "blocks, peak", "taken, with graphs", "TensorRT's default"]
    keys = ("blocks_mean_mib", "blocks_peak_mib", "taken_mib", "tensorrt_taken_mib")
    return head, [[record["case"], *(f"{record[key]:.0f}" for key in keys)] for record in records]


def host(records: Sequence[Record]) -> Table:
    """A row per batch: the GPU's time, and that of calls as callers see it, with and without CUDA graphs."""
    columns = {
        "GPU": "gpu_us",
        "`run`": "run_us",
        "4 threads": "run_lists_4_threads_us",
        "`run_packed`": "run_packed_us",
        "`run` to the GPU": "run_to_device_us",
        "`run_packed` of tensors": "run_packed_gpu_us",
        "the same to the GPU": "run_packed_gpu_to_device_us",
        "enqueue and return": "host_run_us",
    }
    rows = [
        [record["case"], *(f"{record[key]:.0f}" if key in record else "-" for key in columns.values())]
        for record in records
        if not record["case"].endswith(BEFORE)
    ]
    return ["batch", *columns], rows


def padded_table(records: Sequence[Record]) -> Table:
    """What the padded interface's engine spends on layers that the packed one does not have, by TensorRT's layers."""
    (record,) = records
    sums = dict.fromkeys(PADDED_LAYERS, 0.0)
    for layer, time_us in record["layers_us"].items():
        for name, pattern in PADDED_LAYERS.items():
            if re.search(pattern, layer):
                sums[name] += time_us
                break
    return ["layers", "us"], [[name, f"{time_us:.1f}"] for name, time_us in sums.items()]


def build_time(records: Sequence[Record]) -> Table:
    """A row per build: its seconds, and the goal."""
    rows = [[r["case"], f"{r['seconds']:.1f}", "-" if r["goal_s"] is None else str(r["goal_s"])] for r in records]
    return ["build", "seconds", "goal"], rows


def folder_memory(records: Sequence[Record]) -> Table:
    """A row per command on a folder: GB of the weights, of the command's own memory, and of mapped files."""
    rows = []
    for record in records:
        folder, _, command = record["case"].partition(", ")
        command, _, cores = command.partition(" --cores ")
        shown = f"`{command}`"
        if command.startswith("prepare"):
            shown = f"`{command.replace('prepare', 'build')}`, a copy for TensorRT"
        shown += f", threads of {cores} cores" if cores else ""
        sizes = (f"{record[key]:.1f}" for key in ("file_gb", "held_gb", "mapped_gb"))
        rows.append([f"{folder}, {shown}", *sizes, f"{record['seconds']:.0f}"])
    return ["command", "weights, GB", "own, GB", "mapped, GB", "seconds"], rows
