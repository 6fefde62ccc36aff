# SPDX-License-Identifier: Apache-2.0
"""Batching on real engines: cost tables, how well they foretell runs of unequal lengths, and a live Batcher.

    python -m benchmarks.batching --results benchmarks/results/local/batching

BERT-base with one vector per sequence, fp16, at most 32 sequences and 512 tokens each: packed, the same without CUDA
graphs, and the original as TensorRT alone builds it, padded. Writes a cost table for each (`padfree simulate` reads
them) and batching.jsonl: "mixed" lines compare measured runs of short-skewed lengths with the table's figure, "live"
lines a Batcher under Poisson arrivals, latency from the intended time, with the simulation of the same arrivals.
--cpu takes a small model in onnxruntime: it shows that this works.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, environment
from padfree.builder.simulate.report import contenders
from padfree.runtime.batching.measure import measure_costs

from .measurement import compare_live, engines, mix, small_models


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, writes the results, and prints them as they come."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="folder for the cost tables and batching.jsonl")
    parser.add_argument("--timing-cache", help="TensorRT's timing cache")
    parser.add_argument("--repeats", type=int, default=20, help="runs of a cell, and mixed runs of a batch size")
    parser.add_argument("--seconds", type=float, default=2.0, help="of every live case")
    parser.add_argument("--cpu", action="store_true", help="a small model in onnxruntime")
    arguments = parser.parse_args(argv)
    arguments.results.mkdir(parents=True, exist_ok=True)
    made_with = environment()

    def record(kind: str, name: str, values: Mapping[str, Any]) -> None:
        print(kind, name, values, flush=True)
        line = {"set": kind, "model": "bert-base", "engine": name, **values, **made_with}
        append_record(arguments.results / "batching.jsonl", line)

    with (
        tempfile.TemporaryDirectory() as folder,
        small_models(Path(folder)) if arguments.cpu else engines(Path(folder), arguments.timing_cache) as sessions,
    ):
        for name, session in sessions.items():
            costs = measure_costs(session, repeats=arguments.repeats, environment={"model": "bert-base", **made_with})
            (arguments.results / f"{name}.json").write_text(costs.to_json(), "utf-8")
            print(name, costs.cost_ms, flush=True)
            for values in mix(session, costs, arguments.repeats):
                record("mixed", name, values)
            for contender in contenders({name: costs}, max_batch=None, max_tokens=None, max_delay_s=0.0):
                if not contender.name.endswith("one by one"):
                    for values in compare_live(session, contender, arguments.seconds):
                        record("live", name, values)


if __name__ == "__main__":
    main()
