# SPDX-License-Identifier: Apache-2.0
"""The forecasts as a table, and the sources of the rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..records import Record, read
from .model import Forecast, Job, Machines

HEAD = ("GPUs", "hours", "GPU hours", "cost", "start", "last shards", "GB/s in", "GB/s out", "cores", "binds")
POOL, PLAN, CASE = "devices.jsonl", "end_to_end.jsonl", "targets: bert-base, 16 x 512, mean 307.2"
TOKENISING = "tokenising.jsonl"


def gpu_rate(results: Path) -> tuple[float, Record]:
    """Tokens per second of BERT-base on one GPU, from ids to vectors if that was measured, and the record."""
    pool = results / POOL
    collected = [record for record in (read(pool) if pool.exists() else []) if record["case"] == "1 GPU"]
    if collected:
        return float(collected[0]["run_tokens_per_s"]), collected[0]
    (record,) = (record for record in read(results / PLAN) if record["case"] == CASE)
    return 1e3 * record["tokens"] / record["ours_ms"], record


def core_rate(results: Path) -> tuple[float, Record]:
    """Tokens per second that one core makes from texts with the library, and the record."""
    record = next(item for item in read(results / TOKENISING) if item["case"] == "tokenising, library")
    return float(record["core_tokens_per_s"]), record


def cells(forecast: Forecast) -> list[str]:
    """A row of the table."""
    return [
        str(forecast.gpus),
        f"{forecast.seconds / 3600:.3g}",
        f"{forecast.gpu_hours:.3g}",
        f"{forecast.cost:.0f}",
        f"{forecast.start_share:.1%}",
        f"{forecast.tail_share:.1%}",
        f"{forecast.read_gb_per_s:.3g}",
        f"{forecast.write_gb_per_s:.3g}",
        f"{forecast.cores:.0f}",
        forecast.binds,
    ]


def of_record(record: Record) -> list[str]:
    """A row of the table from a record."""
    return cells(Forecast(**{field.name: record[field.name] for field in fields(Forecast)}))


def as_record(forecast: Forecast, job: Job, machines: Machines) -> dict[str, Any]:
    """A forecast for a file of records."""
    return {
        "case": f"{forecast.gpus} GPU" + "s" * (forecast.gpus > 1),
        **asdict(forecast),
        "job": asdict(job),
        "machines": asdict(machines),
    }


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns for a terminal."""
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    lines = [HEAD, *rows]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
