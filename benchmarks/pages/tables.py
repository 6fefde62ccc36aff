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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from benchmarks.records import (
    LIMIT,
    PADFREE,
    TENSORRT,
    Record,
    earlier_times_of,
    in_earlier_run,
    of_last_commit,
    read,
    times_of,
)

from . import account_tables, fp8_tables, plugin_tables, position_tables, scale_tables, service_tables

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "guide": ("integrations", "scale", "training", "bulk", "fp8", "beside-others", "migrating"),
    "reference": ("runtime-gpu",),
    "internals": (
        "performance",
        "build-time",
        "rows",
        "attention-figures",
        "linear",
        "linear-e4m3",
        "load",
        "trained-models",
    ),
}
DOCUMENTS = ("README.md", *(f"docs/{folder}/{name}.md" for folder, names in PAGES.items() for name in names))
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "distilbert": "DistilBERT",
    "albert": "ALBERT",
    "minilm": "MiniLM",
    "bge-small": "bge-small",
    "deberta": "DeBERTa",
    "mpnet": "MPNet",
    "t5": "T5, encoder",
    "modernbert": "ModernBERT",
    "nomic": "Nomic",
}
UNMEASURED = "Not measured yet.\n"
VARLEN = "PyTorch varlen, compiled"
ERRORS = (("padfree", PADFREE), ("padded TensorRT", "TensorRT padded"), ("PyTorch fp16", "PyTorch eager"))
"""Label -> how the title of what made the error starts."""
GOALS: Mapping[tuple[str, int, int], tuple[float, float | None, float]] = {
    ("bert-base", 16, 512): (1.18, 2.8, 1.25),
    ("bert-base", 16, 128): (1.28, 1.8, 1.25),
    ("bert-base", 1, 128): (1.35, 1.5, 1.4),
    ("bert-large", 32, 384): (1.15, None, 1.22),
}
"""Model, B and S -> our time over the limit, at most; padded TensorRT's and PyTorch varlen's over ours, at least."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def with_notes(head: Sequence[str], rows: Iterable[Sequence[str]], records: Sequence[Record]) -> str:
    """A table and what its records were measured with; a column names the commits where they are several."""
    if not records:
        return UNMEASURED
    if len(commits_of(records)) > 1:
        head = [*head, "commit"]
        rows = [[*row, record["commit"]] for row, record in zip(rows, records, strict=True)]
    return f"{table(head, rows)}\n{made_with(records)}\n"


def ms(time_ms: float | None) -> str:
    """A time with three digits, a dash for none."""
    if time_ms is None:
        return "-"
    return f"{time_ms:.3f}" if time_ms < 1 else f"{time_ms:.2f}"


def ratio(numerator: float | None, denominator: float | None) -> str:
    """A quotient with two digits after the point, a dash where a part is missing."""
    return f"{numerator / denominator:.2f}" if numerator and denominator else "-"


def of_set(records: Sequence[Record], name: str) -> list[Record]:
    """The records of one set of cases."""
    return [record for record in records if record["set"] == name]


def batch_name(record: Record) -> str:
    """A target's column head."""
    return f"{NAMES[record['model']]}, {record['batch']} x {record['seq_len']}"


def peers_of(result: Sequence[Mapping[str, float]]) -> list[str]:
    """Who was measured beside ours in any case."""
    return [name for name in dict.fromkeys(name for times in result for name in times) if name not in (PADFREE, LIMIT)]


def targets(records: Sequence[Record]) -> str:
    """A row a contender, a column a batch: milliseconds, those of an earlier run in brackets, then errors."""
    chosen = of_set(records, "targets")
    results = [times_of(record) for record in chosen]
    earlier = [earlier_times_of(record) for record in chosen]
    peers = sorted(peers_of([*results, *earlier]), key=lambda name: (not name.startswith(PADFREE), name != TENSORRT))
    head = ["ms per batch", *(f"{batch_name(record)}, {record['tokens']} tokens" for record in chosen)]
    shown = [
        {name: ms(time) for name, time in now.items()} | {name: in_earlier_run(ms(time)) for name, time in then.items()}
        for now, then in zip(results, earlier, strict=True)
    ]
    rows = [[name, *(cells.get(name, ms(None)) for cells in shown)] for name in (PADFREE, *peers, LIMIT)]
    rows[0] = [f"**{cell}**" for cell in rows[0]]
    for label, start in ERRORS:
        errors = [[error for title, error in record["errors"].items() if title.startswith(start)] for record in chosen]
        if any(errors):
            rows.append([f"error: {label}", *(f"{values[0]:.1e}" if values else "-" for values in errors)])
    if len(commits_of(chosen)) > 1:
        rows.append(["commit", *(record["commit"] for record in chosen)])
    return f"{table(head, rows)}\n{made_with(chosen)}\n"


def goals(records: Sequence[Record]) -> str:
    """What was aimed at beside what was reached."""
    chosen, rows = of_set(records, "targets"), []
    for record in chosen:
        over_limit, over_tensorrt, over_varlen = GOALS[record["model"], record["batch"], record["seq_len"]]
        times = times_of(record)
        ours = times[PADFREE]
        rows.append(
            [
                f"{batch_name(record)}, {record['tokens']} tokens",
                f"{ratio(ours, times.get(LIMIT))} ({over_limit})",
                f"{ratio(times.get(TENSORRT), ours)} ({over_tensorrt or '-'})",
                f"{ratio(times.get(VARLEN), ours)} ({over_varlen})",
            ]
        )
    head = ["reached (goal)", "padfree / limit", "padded TensorRT / padfree", "PyTorch varlen / padfree"]
    return with_notes(head, rows, chosen)


def summary(records: Sequence[Record]) -> str:
    """The README's table: ours, padded TensorRT's time, and the quotient."""
    chosen, rows = of_set(records, "targets"), []
    for record in chosen:
        times = times_of(record)
        padding = 1 - record["tokens"] / record["slots"]
        cells = [f"{batch_name(record)}, {padding:.0%} padding", ms(times[PADFREE])]
        cells += [ms(times.get(name)) for name in (TENSORRT, VARLEN, LIMIT)]
        rows.append([*cells, f"{ratio(times.get(TENSORRT), times[PADFREE])} x"])
    head = ["ms per batch", "padfree", "padded TensorRT", "PyTorch varlen", "limit", "faster than TensorRT"]
    return with_notes(head, rows, chosen)


Key = Callable[[Record], tuple[float, ...]]
SWEEPS: tuple[tuple[str, str, str, Key, Callable[[Record], str]], ...] = (
    (
        "fill",
        "Mean length from a tenth of S to all of it (BERT-base, B 16, S 512)",
        "mean length / S",
        lambda record: (record["tokens"],),
        lambda record: f"{record['tokens'] / record['slots']:.1f}",
    ),
    (
        "tokens",
        "Number of tokens (BERT-base, S 512, one sequence below 300 tokens)",
        "batch",
        lambda record: (record["tokens"],),
        lambda record: f"{record['batch']} x {record['seq_len']}",
    ),
    (
        "length",
        "S (BERT-base, mean length 0.6 S)",
        "batch",
        lambda record: (-record["batch"], record["seq_len"]),
        lambda record: f"{record['batch']} x {record['seq_len']}",
    ),
    (
        "model",
        "Other models (B 16, S 512, mean length 0.6 S)",
        "model, packed share of the GEMMs",
        lambda record: (list(NAMES).index(record["model"]),),
        lambda record: f"{NAMES[record['model']]}, {record['packed_flops_share']:.0%}",
    ),
    (
        "small",
        "Small encoders (E 384, heads of 32)",
        "model, batch",
        lambda record: (list(NAMES).index(record["model"]), record["tokens"]),
        lambda record: f"{NAMES[record['model']]}, {record['batch']} x {record['seq_len']}",
    ),
)
"""Set, heading, first column's head, order, and first column's text."""


def sweep(records: Sequence[Record]) -> str:
    """The picture, and a heading and a table for every set that there are records of."""
    parts: list[str] = []
    compared = {TENSORRT: "padded TensorRT / padfree", VARLEN: "PyTorch varlen / padfree"}
    for name, heading, first, order, text in SWEEPS:
        chosen = sorted(of_set(records, name), key=order)
        if not chosen:
            continue
        results = [times_of(record) for record in chosen]
        others = peers_of(results)
        rows = []
        for record, times in zip(chosen, results, strict=True):
            ours = times[PADFREE]
            shown = [ms(ours), *(ms(times.get(title)) for title in others)]
            ratios = [ratio(times.get(title), ours) for title in compared if title in others]
            rows.append([text(record), str(record["tokens"]), *shown, *ratios, ratio(ours, times.get(LIMIT))])
        heads = [head for title, head in compared.items() if title in others]
        head = [first, "tokens", "padfree, ms", *others, *heads, "padfree / limit"]
        parts.append(f"### {heading}\n\n{with_notes(head, rows, chosen)}")
    picture = (
        "![Curves of the time of padded TensorRT and others, divided by the time of padfree, over lengths, padding,\n"
        "tokens and models: all others lie above 1, the limit lies below](../images/sweep.svg)\n"
    )
    return "\n".join([picture, *parts]) if parts else ""


def positions(results: Path) -> str:
    """A row per model with positions in its attention: of the last commit alone, since they lean on each other."""
    chosen = of_last_commit(results / "end_to_end.jsonl", lambda record: record["set"] == "positions")
    if not chosen:
        return UNMEASURED
    chosen.sort(key=lambda record: (list(NAMES).index(record["model"]), -record["batch"], -record["seq_len"]))
    others, rows = peers_of([times_of(record) for record in chosen]), []
    for record in chosen:
        times = times_of(record)
        named = f"{NAMES[record['model']]}, {record['batch']} x {record['seq_len']}, {record['tokens']} tokens"
        shown = [ms(times.get(name)) for name in (PADFREE, *others, LIMIT)]
        over_limit = ratio(times[PADFREE], times.get(LIMIT))
        rows.append([named, *shown, over_limit, position_tables.goals_of(record, chosen)])
    head = ["ms per batch", PADFREE, *others, "limit", "padfree / limit", "goal: reached"]
    return f"{table(head, rows)}\n{made_with(chosen)}\n"


def fp8(results: Path) -> str:
    """A row per batch in fp8, with fp16 beside it: in brackets, as what was measured in another run."""
    path = results / "end_to_end.jsonl"
    chosen = of_set(read(path), "fp8") if path.exists() else []
    return with_notes(*fp8_tables.fp8(chosen, NAMES))


def account(
    make: Callable[[Sequence[Record]], account_tables.Table], ending: str = ""
) -> Callable[[Sequence[Record]], str]:
    """A table of account_tables as Markdown, of the cases whose names end so."""

    def text(records: Sequence[Record]) -> str:
        chosen = [record for record in records if record["case"].endswith(ending)]
        return f"{table(*make(chosen))}\n{made_with(chosen)}\n"

    return text


def rows(records: Sequence[Record]) -> str:
    """A row a case of the benchmark of memory-bound kernels."""
    return with_notes(list(row_report.COLUMNS), map(row_report.cells, records), records)


def attention(records: Sequence[Record]) -> str:
    """A row a case of the attention benchmark, and what they were measured with."""
    return with_notes(PAGE_HEADINGS, map(page_cells, records), records)


def attention_positions(records: Sequence[Record]) -> str:
    """A row a case of attention with positions."""
    return with_notes(POSITION_HEADINGS, map(position_cells, records), records)


def attention_profile(records: Sequence[Record]) -> str:
    """A row a case that was profiled, and what they were measured with."""
    return with_notes(PROFILE_HEADINGS, map(profile_cells, records), records)


def linear(records: Sequence[Record]) -> str:
    """A row a product, or all products of a layer."""
    shown = [record for record in records if linear_report.is_shown(record)]
    return with_notes(linear_report.HEADINGS, map(linear_report.cells, shown), shown)


def linear_e4m3(records: Sequence[Record]) -> str:
    """A row a product of e4m3, or all products of a layer."""
    return with_notes(linear_report.E4M3_HEADINGS, map(linear_report.e4m3_cells, records), records)


def with_training(make: Callable[[Sequence[Record]], str]) -> Callable[[Sequence[Record]], str]:
    """A table of trained_report, and what it was measured with."""
    return lambda records: f"{make(records)}\n{made_with(records)}\n"


def pretrained_models(results: Path) -> str:
    """A row a published model."""
    records = of_last_commit(results / "pretrained.jsonl")
    return with_notes(pretrained_report.HEADINGS, map(pretrained_report.cells, records), records)


Table = Callable[[Path], str]


def of_cases(source: str, make: Callable[[Sequence[Record]], str]) -> Table:
    """A table of the records in `source`, of which the last of every case counts."""
    return lambda results: make(read(results / f"{source}.jsonl"))


def contest(results: Path) -> str:
    """A row a server: its best step within the limit of latency."""
    servers = load_report.read(results / "load.jsonl")
    return f"{load_report.table(servers)}\n{made_with([step for steps in servers.values() for step in steps])}\n"


def service(source: str, make: Callable[[Sequence[Record]], service_tables.Table]) -> Table:
    """A table of service_tables, of the last commit alone."""

    def text(results: Path) -> str:
        chosen = of_last_commit(results / f"{source}.jsonl")
        return f"{table(*make(chosen))}\n{made_with(chosen)}\n" if chosen else UNMEASURED

    return text


def http(results: Path) -> str:
    """A row a number of texts per request, each of the last commit that it was measured at."""
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
    """A table of measurements on a CPU, but for cases whose name holds `but`."""

    def text(results: Path) -> str:
        path = results.parent / "cpu" / f"{source}.jsonl"
        records = [record for record in read(path) if but not in record["case"]] if path.exists() else []
        if not records:
            return UNMEASURED
        return f"{table(*make(records))}\nMeasured without a GPU at commit {', '.join(commits_of(records))}.\n"

    return text


TABLES: Mapping[str, Table] = {
    "summary": of_cases("end_to_end", summary),
    "targets": of_cases("end_to_end", targets),
    "goals": of_cases("end_to_end", goals),
    "plugins": of_cases("end_to_end", lambda records: with_notes(*plugin_tables.plugins(records, NAMES))),
    "sweep": of_cases("end_to_end", sweep),
    "positions": positions,
    "fp8": fp8,
    "fp8_accuracy": past_one_gpu("cpu/fp8", fp8_tables.accuracy),
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
    "attention": of_cases("attention", attention),
    "attention_positions": of_cases("attention_positions", attention_positions),
    "attention_profile": of_cases("attention_profile", attention_profile),
    "trained": of_cases("trained", with_training(trained_report.scores)),
    "trained_layers": of_cases("trained", with_training(trained_report.errors)),
    "pretrained": pretrained_models,
    "contest": contest,
    "http": http,
    "integrations": service("integrations", service_tables.integrations),
    "devices": past_one_gpu("h200/devices", scale_tables.devices),
    "imbalance": past_one_gpu("cpu/training", scale_tables.imbalance),
    "steps": past_one_gpu("h200/training", scale_tables.steps),
    "scale": past_one_gpu("cpu/scale", scale_tables.scale),
    "bulk": past_one_gpu("h200/bulk", scale_tables.bulk),
    "cores": without_gpu("embed", service_tables.cores),
}
"""Name of a table -> what makes it of the folder of records."""


def fill(text: str, results: Path) -> str:
    """A document with its tables made anew from the records."""

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
