# SPDX-License-Identifier: Apache-2.0
"""Tables of what callers get: texts through sentence-transformers, over HTTP, and on the cores of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.load.report import best
from benchmarks.records import Record

OURS = "padfree"
TASKS: Mapping[str, str] = {"encode": "`encode`, {} texts", "predict": "`predict`, {} pairs"}
HTTP_HEAD = ("texts per request", "requests/s", "texts/s", "tokens/s", "p50 ms", "p99 ms", "commit")

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def integrations(records: Sequence[Record]) -> Table:
    """A row per task, a column per contender: thousand texts per second, and our ratio to the best other one."""
    who = list(dict.fromkeys(record["who"] for record in records))
    others = [name for name in who if name.startswith("itself")]
    rows = []
    for task, named in TASKS.items():
        results = {record["who"]: record for record in records if record["task"] == task}
        if not results:
            continue
        cells = [f"{results[name]['a_second'] / 1e3:.1f}" if name in results else "-" for name in who]
        times = [results[name]["ms"] for name in others if name in results]
        ratio = f"{min(times) / results[OURS]['ms']:.1f} x" if times and OURS in results else "-"
        size = f"{results[OURS]['inputs']:,}"
        rows.append([f"{named.format(size)}, {results[OURS]['tokens']:,} tokens", *cells, ratio])
    heads = [name.replace("itself", "sentence-transformers") for name in who]
    return ["thousand per second", *heads, "padfree over the best other"], rows


def http(records: Sequence[Record]) -> Table:
    """A row per number of texts per request: the best step within the limit of latency."""
    rows = []
    for texts in sorted({record["texts"] for record in records}):
        step = best([record for record in records if record["texts"] == texts])
        if step is not None:
            rates = (f"{step[rate]:,.0f}" for rate in ("answered_per_s", "texts_per_s", "tokens_per_s"))
            latency = (f"{step['latency_ms'][share]:.1f}" for share in ("p50", "p99"))
            rows.append([str(texts), *rates, *latency, step["commit"]])
    return HTTP_HEAD, rows


def callers(records: Sequence[Record]) -> Table:
    """A row per server and number of callers: how long a text of theirs takes."""
    rows = []
    for name, count in dict.fromkeys((record["label"], record["callers"]) for record in records):
        last = [record for record in records if (record["label"], record["callers"]) == (name, count)][-1]
        rate = last["answers"] / last["seconds"]
        if "gpu_ms" in last:
            rows.append(["the GPU's part of it", "", f"{last['gpu_ms']:.2f}", "", ""])
        rows.append([name, str(count), f"{last['p50_ms']:.2f}", f"{last['p99_ms']:.2f}", f"{rate:,.0f}"])
    return ("server", "callers", "p50 ms", "p99 ms", "texts/s"), rows


def cores(records: Sequence[Record]) -> Table:
    """A row per command from texts to vectors without a GPU: seconds on the clock, and of all cores."""
    head = ["command", "seconds", "seconds of all cores"]
    return head, [[record["case"], f"{record['wall_s']:.1f}", f"{record['cpu_s']:.1f}"] for record in records]
