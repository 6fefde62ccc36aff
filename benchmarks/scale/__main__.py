# SPDX-License-Identifier: Apache-2.0
"""What a large job costs on 1 to 1024 GPUs, and what binds first: a cost table from measured rates.

    python -m benchmarks.scale
    python -m benchmarks.scale --gpu-tokens-per-s 9e6 --bytes-a-vector 768 --price 2.5 --shard-texts 20000
    python -m benchmarks.scale --tokenise --json benchmarks/results/local/tokenising.jsonl

The rates of a GPU and of a core are read from the records of an H200 and of a CPU in benchmarks/results unless they are
given. Everything else is an input with a default that `--help` names: the network, the store, the start, the price.
`--tokenise` measures what one core of this machine tokenises.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import json_parser, keep

from . import report, tokenising
from .model import Job, Machines, forecast

RESULTS = Path(__file__).resolve().parents[1] / "results"
GPUS = tuple(1 << power for power in range(11))
MEDIAN, DEVIATION = 165, 0.45
"""Median and deviation of log-normal lengths if no file gives others: those of SQuAD's features."""


def option(name: str) -> str:
    """A field's option on the command line."""
    return "--price" if name == "price_a_gpu_hour" else f"--{name.replace('_', '-')}"


def make_parser() -> argparse.ArgumentParser:
    """One option for every field of Job and Machines."""
    parser = json_parser(__doc__, "one line per row, or a measurement,")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="tokens of real texts, .npy, for their spread")
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS, metavar="N", help="rows (default: 1 2 4 ... 1024)")
    parser.add_argument("--tokenise", action="store_true", help="measure one core of this machine instead")
    for kind in (Job, Machines):
        for field in fields(kind):
            measured = field.name in ("gpu_tokens_per_s", "core_tokens_per_s")
            parser.add_argument(
                option(field.name),
                dest=field.name,
                type=int if field.type == "int" else float,
                default=None if measured else field.default,
                metavar="N",
                help="default: what was measured" if measured else f"default {field.default}",
            )
    return parser


def inputs(arguments: argparse.Namespace) -> tuple[Job, Machines]:
    """The job and the machines, with measured rates where none is given."""
    values = vars(arguments)
    if values["gpu_tokens_per_s"] is None:
        values["gpu_tokens_per_s"] = report.gpu_rate(RESULTS / "h200")[0]
    if values["core_tokens_per_s"] is None:
        values["core_tokens_per_s"] = report.core_rate(RESULTS / "cpu")[0]
    for name in (field.name for kind in (Job, Machines) for field in fields(kind)):
        if not values[name] > 0 and name not in ("start_s", "spread"):
            raise SystemExit(f"{option(name)} is {values[name]}, allowed: above 0; leave it out")
    job, machines = ({field.name: values[field.name] for field in fields(kind)} for kind in (Job, Machines))
    return Job(**job), Machines(**machines)


def main() -> None:
    """Prints the table, and records its rows."""
    arguments = make_parser().parse_args()
    records: list[dict[str, Any]] = []
    if arguments.tokenise:
        records = list(tokenising.measure())
        for record in records:
            print(record)
    else:
        job, machines = inputs(arguments)
        lengths = np.random.default_rng(0).lognormal(np.log(MEDIAN), DEVIATION, 10_000).astype(np.int64)
        if arguments.lengths is not None:
            lengths = np.load(arguments.lengths)
        results = [forecast(job, machines, gpus, lengths) for gpus in arguments.gpus]
        print(f"{job}\n{machines}")
        print(report.text_table([report.cells(row) for row in results]))
        records = [report.as_record(row, job, machines) for row in results]
    for record in records:
        keep(arguments.json, record)


if __name__ == "__main__":
    main()
