# SPDX-License-Identifier: Apache-2.0
"""Tables of work beyond one GPU: a pool's rates, balanced training batches, a large job's cost, work on files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.records import Record
from benchmarks.scale.report import HEAD, of_record

BY_BATCH = (8, 16, 32)

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def devices(records: Sequence[Record]) -> Table:
    """A row per number of GPUs: million tokens per second, and the ratio to one GPU."""
    one = next(record for record in records if record["case"] == "1 GPU")

    def rate(record: Record, name: str) -> list[str]:
        if name not in record:
            return ["-", "-"]
        return [f"{record[name] / 1e6:.2f}", f"{record[name] / one[name]:.2f} x"]

    names = ("run_tokens_per_s", "batcher_tokens_per_s")
    head = ["", "`run`, million tokens/s", "of one GPU", "`Batcher`, million tokens/s", "of one GPU"]
    return head, [[record["case"], *rate(record, names[0]), *rate(record, names[1])] for record in records]


def imbalance(records: Sequence[Record]) -> Table:
    """A row per number of ranks, a column per batch size: mean and 99th percentile, balanced and by chance."""
    results = {(record["ranks"], record["batch"]): record for record in records if "steps" in record}
    head = ["ranks", *(f"{batch} rows per rank, {way}" for batch in BY_BATCH for way in ("balanced", "random"))]
    rows = []
    for ranks in sorted({ranks for ranks, _ in results}):
        cells = []
        for batch in BY_BATCH:
            record = results.get((ranks, batch))
            for way in ("balanced", "unbalanced"):
                shown = "-" if record is None else f"{record[f'{way}_mean']:.2%} ({record[f'{way}_p99']:.2%})"
                cells.append(shown)
        rows.append([str(ranks), *cells])
    return head, rows


def steps(records: Sequence[Record]) -> Table:
    """A row per batch size: steps per second both ways, and the imbalance that the GPUs had."""
    head = [
        "GPUs x rows",
        "balanced, steps/s",
        "random, steps/s",
        "ratio",
        "slowest GPU, balanced",
        "slowest GPU, random",
    ]
    rows = []
    for record in records:
        own = (record[f"{way}_compute_ms"] for way in ("balanced", "unbalanced"))
        over = [f"{one['slowest'] / one['mean'] - 1:+.1%}" for one in own]
        rates = [f"{record[f'{way}_steps_per_s']:.2f}" for way in ("balanced", "unbalanced")]
        rows.append([f"{record['ranks']} x {record['batch']}", *rates, f"{record['gain']:.3f}", *over])
    return head, rows


def scale(records: Sequence[Record]) -> Table:
    """A row per number of GPUs: a job's forecast."""
    return HEAD, [of_record(record) for record in records]


def bulk(records: Sequence[Record]) -> Table:
    """A row per contender: million tokens per second from file to file, cores in use, and how idle GPUs were."""
    head = ["", "million tokens/s", "of one GPU", "of `Session` alone, per GPU", "cores", "no batch", "no kernel"]

    def share(record: Record, name: str) -> str:
        value = record.get(name)
        value = max(value) if isinstance(value, list) else value
        return "-" if value is None else f"{value:.1%}"

    rows = []
    for record in sorted(records, key=lambda record: str(record["case"].partition(",")[0])):  # a model's rows together
        times = f"{record['of_one_gpu']:.2f} x" if "of_one_gpu" in record else "-"
        cells = [f"{record['tokens_a_second'] / 1e6:.2f}", times, share(record, "of_session")]
        cells += [str(record.get("cores", "-")), share(record, "idle"), share(record, "gpu_idle")]
        rows.append([record["case"], *cells])
    return head, rows
