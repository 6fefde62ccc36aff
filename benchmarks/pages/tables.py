# SPDX-License-Identifier: Apache-2.0
"""Tables of recorded measurements, written into the documents that show them.

    python -m benchmarks.pages.tables
    python -m benchmarks.pages.tables --check

A document names a table in a comment, `<!-- table: NAME -->`; everything from there to `<!-- end -->` is replaced. Of
lines with the same case the last counts; sets that nothing was recorded of leave no trace. --check writes nothing and
fails where a document is not what the records say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.accuracy import pretrained_report
from benchmarks.accuracy import report as trained_report
from benchmarks.attention.report import (
    PAGE_HEADINGS,
    POSITION_HEADINGS,
    PROFILE_HEADINGS,
    page_cells,
    position_cells,
    profile_cells,
)
from benchmarks.kernels import linear_report, row_report
from benchmarks.load import report as load_report
from benchmarks.provenance import commits_of, made_with
from benchmarks.records import Record, of_last_commit, read

from . import account_tables, fp8_tables, general_tables, model_tables, plugin_tables, scale_tables, service_tables
from .markdown import UNMEASURED, table, with_notes

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "guide": ("integrations", "scale", "training", "bulk", "fp8", "int8", "beside-others", "migrating"),
    "reference": ("runtime-gpu",),
    "internals": (
        "performance",
        "build-time",
        "rows",
        "attention-figures",
        "linear",
        "linear-e4m3",
        "linear-general",
        "load",
        "native-triton-backend",
        "trained-models",
    ),
}
DOCUMENTS = ("README.md", *(f"docs/{folder}/{name}.md" for folder, names in PAGES.items() for name in names))
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def account(
    make: Callable[[Sequence[Record]], account_tables.Table], ending: str = ""
) -> Callable[[Sequence[Record]], str]:
    """A table of account_tables as Markdown, for the cases whose names have this ending."""

    def text(records: Sequence[Record]) -> str:
        chosen = [record for record in records if record["case"].endswith(ending)]
        return f"{table(*make(chosen))}\n{made_with(chosen)}\n"

    return text


def rows(records: Sequence[Record]) -> str:
    """A row per case of the benchmark of memory-bound kernels."""
    return with_notes(list(row_report.COLUMNS), map(row_report.cells, records), records)


def attention(records: Sequence[Record]) -> str:
    """A row per case of the attention benchmark, and what the cases were measured with."""
    return with_notes(PAGE_HEADINGS, map(page_cells, records), records)


def attention_positions(records: Sequence[Record]) -> str:
    """A row per case of attention with positions."""
    return with_notes(POSITION_HEADINGS, map(position_cells, records), records)


def attention_profile(records: Sequence[Record]) -> str:
    """A row per case that was profiled, and what the cases were measured with."""
    return with_notes(PROFILE_HEADINGS, map(profile_cells, records), records)


def linear(records: Sequence[Record]) -> str:
    """A row per GEMM, or all GEMMs of a layer."""
    shown = [record for record in records if linear_report.is_shown(record)]
    return with_notes(linear_report.HEADINGS, map(linear_report.cells, shown), shown)


def linear_e4m3(records: Sequence[Record]) -> str:
    """A row per GEMM of e4m3, or all GEMMs of a layer."""
    return with_notes(linear_report.E4M3_HEADINGS, map(linear_report.e4m3_cells, records), records)


def linear_mma(records: Sequence[Record]) -> str:
    """A row per GEMM of the kernels on mma.sync."""
    shown = [record for record in records if "chosen" in record.get("times_us", ())]
    return with_notes(linear_report.MMA_HEADINGS, map(linear_report.mma_cells, shown), shown)


def with_training(make: Callable[[Sequence[Record]], str]) -> Callable[[Sequence[Record]], str]:
    """A table of trained_report, and what it was measured with."""
    return lambda records: f"{make(records)}\n{made_with(records)}\n"


def trained_int8(results: Path) -> str:
    """Scores of a small model in int8: of engines, or of what onnxruntime ran on a CPU where no engine was scored."""
    scored = results / "trained_int8.jsonl"
    if scored.exists():
        return with_training(trained_report.scores)(read(scored))
    records = read(results.parent / "cpu" / "trained_int8.jsonl")
    return f"{trained_report.scores(records)}\nComputed at commit {', '.join(commits_of(records))}.\n"


def pretrained_models(results: Path) -> str:
    """A row per published model."""
    records = of_last_commit(results / "pretrained.jsonl")
    return with_notes(pretrained_report.HEADINGS, map(pretrained_report.cells, records), records)


def general(results: Path) -> str:
    """A row per engine with the kernels for GPUs other than Hopper."""
    return general_tables.general(read(results / "general.jsonl"), read(results / "end_to_end.jsonl"))


Table = Callable[[Path], str]


def of_cases(source: str, make: Callable[[Sequence[Record]], str]) -> Table:
    """A table of the records in `source`; the last record of every case counts."""
    return lambda results: make(read(results / f"{source}.jsonl"))


def contest(source: str) -> Table:
    """A table of servers: the best step of each within the limit of latency."""

    def text(results: Path) -> str:
        path = results / f"{source}.jsonl"
        servers = load_report.read(path)
        rows = load_report.table(servers, load_report.session_rate(path))
        return f"{rows}\n{made_with([step for steps in servers.values() for step in steps])}\n"

    return text


def service(source: str, make: Callable[[Sequence[Record]], service_tables.Table]) -> Table:
    """A table of service_tables, for the last commit only."""

    def text(results: Path) -> str:
        chosen = of_last_commit(results / f"{source}.jsonl")
        return f"{table(*make(chosen))}\n{made_with(chosen)}\n" if chosen else UNMEASURED

    return text


def http(results: Path) -> str:
    """A row per number of texts per request, each from the last commit at which it was measured."""
    path = results / "http.jsonl"
    numbers = {record["texts"] for record in read(path)} if path.exists() else set()
    chosen = [step for number in numbers for step in of_last_commit(path, partial(_asks_with, number))]
    return f"{table(*service_tables.http(chosen))}\n{made_with(chosen)}\n" if chosen else UNMEASURED


def _asks_with(texts: int, step: Record) -> bool:
    return bool(step["texts"] == texts)


def past_one_gpu(source: str, make: Callable[[Sequence[Record]], scale_tables.Table]) -> Table:
    """A table of scale_tables: measured on an H200, or computed."""

    def text(results: Path) -> str:
        path = results.parent / f"{source}.jsonl"
        records = read(path) if path.exists() else []
        if not records:
            return UNMEASURED
        result = made_with(records) if "gpu" in records[0] else f"Computed at commit {', '.join(commits_of(records))}."
        return f"{table(*make(records))}\n{result}\n"

    return text


def without_gpu(source: str, make: Callable[[Sequence[Record]], service_tables.Table], but: str = "no case") -> Table:
    """A table of measurements on a CPU, without cases whose names contain `but`."""

    def text(results: Path) -> str:
        path = results.parent / "cpu" / f"{source}.jsonl"
        records = [record for record in read(path) if but not in record["case"]] if path.exists() else []
        if not records:
            return UNMEASURED
        return f"{table(*make(records))}\nMeasured without a GPU at commit {', '.join(commits_of(records))}.\n"

    return text


TABLES: Mapping[str, Table] = {
    "summary": of_cases("end_to_end", model_tables.summary),
    "targets": of_cases("end_to_end", model_tables.targets),
    "goals": of_cases("end_to_end", model_tables.goals),
    "plugins": of_cases("end_to_end", lambda records: with_notes(*plugin_tables.plugins(records, model_tables.NAMES))),
    "sweep": of_cases("end_to_end", model_tables.sweep),
    "positions": model_tables.positions,
    "fp8": model_tables.fp8,
    "fp8_accuracy": past_one_gpu("cpu/fp8", fp8_tables.accuracy),
    "int8_accuracy": past_one_gpu("cpu/int8", fp8_tables.accuracy),
    "build_time": of_cases("build_time", account(account_tables.build_time)),
    "folder_time": of_cases("folder_time", account(account_tables.build_time)),
    "folder_memory": without_gpu("folder_memory", account_tables.folder_memory, but="--no-verify"),
    "timeline": of_cases("timeline", account(account_tables.timeline, account_tables.OURS)),
    "padded": of_cases("layers", account(account_tables.padded_table, account_tables.PADDED)),
    "memory": of_cases("memory", account(account_tables.memory)),
    "host": of_cases("session", account(account_tables.host)),
    "rows": of_cases("rows", rows),
    "linear": of_cases("linear", linear),
    "linear_e4m3": of_cases("linear_e4m3", linear_e4m3),
    "linear_mma": of_cases("linear_mma", linear_mma),
    "general": general,
    "attention": of_cases("attention", attention),
    "attention_positions": of_cases("attention_positions", attention_positions),
    "attention_profile": of_cases("attention_profile", attention_profile),
    "trained": of_cases("trained", with_training(trained_report.scores)),
    "trained_layers": of_cases("trained", with_training(trained_report.errors)),
    "trained_int8": trained_int8,
    "pretrained": pretrained_models,
    "contest": contest("load"),
    "native": contest("native"),
    "callers": service("callers", service_tables.callers),
    "http": http,
    "integrations": service("integrations", service_tables.integrations),
    "devices": past_one_gpu("h200/devices", scale_tables.devices),
    "imbalance": past_one_gpu("cpu/training", scale_tables.imbalance),
    "steps": past_one_gpu("h200/training", scale_tables.steps),
    "scale": past_one_gpu("cpu/scale", scale_tables.scale),
    "bulk": past_one_gpu("h200/bulk", scale_tables.bulk),
    "cores": without_gpu("embed", service_tables.cores),
}
"""Name of a table -> what makes it from the folder of records."""


def fill(text: str, results: Path) -> str:
    """A document with its tables rebuilt from the records."""

    def make(result: re.Match[str]) -> str:
        return f"{result[1]}\n{TABLES[result[2]](results)}\n{result[3]}"

    return BLOCK.sub(make, text)


def main() -> int:
    """Writes the tables, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "h200", help="JSON lines")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a document would change")
    arguments = parser.parse_args()
    stale = 0
    for path in (ROOT / name for name in DOCUMENTS):
        text = path.read_text("utf-8")
        wanted = fill(text, arguments.results)
        if wanted != text:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'is not what the records say' if arguments.check else 'written'}")
            if not arguments.check:
                path.write_text(wanted, encoding="utf-8")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
