# SPDX-License-Identifier: Apache-2.0
"""Tables of whole models: the targets, the sweeps, models with positions in their attention, and fp8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

from . import fp8_tables, position_tables
from .markdown import UNMEASURED, ms, ratio, table, with_notes

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
    "nomic-v1.5": "nomic-embed-text v1.5",
    "gte-base": "gte-base v1.5",
    "jina-v3": "Jina v3",
    "qwen3-0.6b": "Qwen3-0.6B",
    "embedding-gemma": "EmbeddingGemma-300m",
    "qwen3-4b": "Qwen3-4B, 4 of 36 layers",
}
VARLEN = "PyTorch varlen, compiled"
VARLEN_OF_ANY = "transformers, varlen attention, packed, compiled"
ERRORS = (("padfree", PADFREE), ("padded TensorRT", "TensorRT padded"), ("PyTorch fp16", "PyTorch eager"))
"""Labels of errors, and how the titles of those that made them start."""
GOALS: Mapping[tuple[str, int, int], tuple[float, float | None, float]] = {
    ("bert-base", 16, 512): (1.18, 2.8, 1.25),
    ("bert-base", 16, 128): (1.28, 1.8, 1.25),
    ("bert-base", 1, 128): (1.35, 1.5, 1.4),
    ("bert-large", 32, 384): (1.15, None, 1.22),
}
"""Model, B and S -> our time over the limit, at most; padded TensorRT's and PyTorch varlen's over ours, at least."""


def of_set(records: Sequence[Record], name: str) -> list[Record]:
    """The records of one set of cases."""
    return [record for record in records if record["set"] == name]


def batch_name(record: Record) -> str:
    """The column head of a target."""
    return f"{NAMES[record['model']]}, {record['batch']} x {record['seq_len']}"


def peers_of(result: Sequence[Mapping[str, float]]) -> list[str]:
    """The peers that were measured in any case."""
    return [name for name in dict.fromkeys(name for times in result for name in times) if name not in (PADFREE, LIMIT)]


def targets(records: Sequence[Record]) -> str:
    """A row per contender, a column per batch: milliseconds, in brackets if from an earlier run, then errors."""
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
    """The goals, compared with what was reached."""
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
    """The README's table: our time, padded TensorRT's, and the quotient."""
    chosen, rows = of_set(records, "targets"), []
    for record in chosen:
        times = times_of(record)
        padding = 1 - record["tokens"] / record["slots"]
        cells = [f"{batch_name(record)}, {padding:.0%} padding", ms(times[PADFREE])]
        cells += [ms(times.get(name)) for name in (TENSORRT, VARLEN, LIMIT)]
        rows.append([*cells, f"{ratio(times.get(TENSORRT), times[PADFREE])} x"])
    head = ["ms per batch", "padfree", "padded TensorRT", "PyTorch varlen", "limit", "faster than TensorRT"]
    return with_notes(head, rows, chosen)


def _largest_first(record: Record) -> tuple[float, ...]:
    return list(NAMES).index(record["model"]), -record["tokens"]


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
        batch_name,
    ),
    (
        "folders",
        "Folders that refer to code of their own",
        "model, batch",
        _largest_first,
        batch_name,
    ),
    (
        "decoders",
        "Embedding models made of decoders (bf16, rows of all tokens)",
        "model, batch",
        _largest_first,
        batch_name,
    ),
    (
        "large",
        "Wide layers in both precisions",
        "model, batch",
        lambda record: (record["precision"] == "fp8",),
        lambda record: f"{batch_name(record)}, {record['precision']}",
    ),
)
"""Set, heading, the first column's head, order, and the first column's text."""


def sweep(records: Sequence[Record]) -> str:
    """The picture, and a heading and a table for every set that has records; times of an earlier run in brackets."""
    parts: list[str] = []
    compared = {
        TENSORRT: "padded TensorRT / padfree",
        VARLEN: "PyTorch varlen / padfree",
        VARLEN_OF_ANY: "varlen / padfree",
    }
    for name, heading, first, order, text in SWEEPS:
        chosen = sorted(of_set(records, name), key=order)
        if not chosen:
            continue
        results = [times_of(record) for record in chosen]
        others = peers_of(results)
        rows = []
        for record, times in zip(chosen, results, strict=True):
            ours = times[PADFREE]
            cells = {title: in_earlier_run(ms(time)) for title, time in earlier_times_of(record).items()}
            cells |= {title: ms(time) for title, time in times.items()}
            shown = [cells.get(title, ms(None)) for title in (PADFREE, *others)]
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
    """A row per model with positions in its attention, of the last commit only, since the goals compare them."""
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
    """A row per batch in fp8, with fp16 in brackets, as it was measured in another run."""
    path = results / "end_to_end.jsonl"
    chosen = of_set(read(path), "fp8") if path.exists() else []
    return with_notes(*fp8_tables.fp8(chosen, NAMES))
