# SPDX-License-Identifier: Apache-2.0
"""Whole models with GEMMs in e4m3: times compared with fp16, TensorRT in e4m3 and the GEMMs alone, and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import EARLIER, EARLIER_COMMITS, Record, in_earlier_run

Table = tuple[list[str], list[list[str]]]
GOALS: Mapping[tuple[str, int, int], str] = {
    ("bert-base", 16, 512): "1.18 ms",
    ("bert-base", 16, 128): "0.44 ms",
    ("bert-large", 32, 384): "5.1 ms",
    ("modernbert", 16, 512): "1.4 x fp16",
}
"""Goals by model, B and S."""


def fp8(records: Sequence[Record], names: Mapping[str, str]) -> tuple[list[str], list[list[str]], list[Record]]:
    """A row per batch that was measured in fp8, compared with fp16; returned last: the record of every row.

    Peers that were only measured in an earlier run are in brackets, and so are fp16 of another commit and its ratio.

    Args:
        records: those of the set fp8, in both precisions.
        names: a model -> its name on the page.
    """
    halves = {_batch(record): record for record in records if record["precision"] == "fp16"}
    pairs = [(record, halves.get(_batch(record))) for record in records if record["precision"] == "fp8"]
    chosen = [_beside(*pair) for pair in pairs]
    peers = list(dict.fromkeys(title for record in chosen for title in (*record["peers_ms"], *_earlier(record))))
    head = ["ms per batch", "tokens", "padfree fp8", "padfree fp16", "fp16 / fp8"]
    head += [*(title.replace("products", "GEMMs") for title in peers), "limit: cuBLASLt e4m3", "fp8 / limit", "goal"]
    rows = [_row(*pair, peers, names) for pair in pairs]
    return head, rows, chosen


def _batch(record: Record) -> tuple[str, int, int]:
    return record["model"], record["batch"], record["seq_len"]


def _row(ours: Record, half: Record | None, peers: Sequence[str], names: Mapping[str, str]) -> list[str]:
    model, sequences, seq_len = batch = _batch(ours)
    cells = [f"{names[model]}, {sequences} x {seq_len}", str(ours["tokens"]), _ms(ours["ours_ms"])]
    beside = [_ms(half["ours_ms"]), f"{half['ours_ms'] / ours['ours_ms']:.2f}"] if half else ["-", "-"]
    cells += map(in_earlier_run, beside) if _is_of_another_run(ours, half) else beside
    earlier = {title: in_earlier_run(_ms(time_ms)) for title, time_ms in _earlier(ours).items()}
    shown = earlier | {title: _ms(time_ms) for title, time_ms in ours["peers_ms"].items()}
    cells += [shown.get(title, _ms(None)) for title in peers]
    limit = ours["limit_ms"]
    return [*cells, _ms(limit), f"{ours['ours_ms'] / limit:.2f}" if limit else "-", GOALS.get(batch, "")]


def _beside(ours: Record, half: Record | None) -> Record:
    """Our record, with fp16's commit among the earlier ones if it differs."""
    if half is None or not _is_of_another_run(ours, half):
        return ours
    return {**ours, EARLIER_COMMITS: sorted({*ours.get(EARLIER_COMMITS, ()), half["commit"]})}


def _is_of_another_run(ours: Record, half: Record | None) -> bool:
    return half is not None and half["commit"] != ours["commit"]


def _earlier(record: Record) -> Mapping[str, float]:
    result: Mapping[str, float] = record.get(EARLIER, {})
    return result


def _ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.3f}" if time_ms < 1 else f"{time_ms:.2f}"


def accuracy(records: Sequence[Record]) -> Table:
    """A row per model and precision, from records of benchmarks/accuracy/fp8.py; older ones have no nDCG."""
    head = ["model, queries", "precision", "cosine to fp32, mean", "worst", "top-1", "points to fp32"]
    results = [(record, *item) for record in records for item in record["precisions"].items()]
    has_gains = any("ndcg_10" in result for _, _, result in results)
    rows = [
        [f"{record['case'].rsplit(', ', 1)[0]}, {record['pairs']}", precision, *_cosines(precision, result)]
        + _score(precision, result, "top_1", "")
        + (_score(precision, result, "ndcg_10", "ndcg_10_") if has_gains else [])
        for record, precision, result in results
    ]
    return [*head, *(["nDCG@10", "points to fp32"] if has_gains else [])], rows


def _cosines(precision: str, result: Mapping[str, Any]) -> list[str]:
    digits = 4 if precision in ("fp8", "int8") else 6
    return [f"{result[name]:.{digits}f}" for name in ("cosine_mean", "cosine_worst")]


def _score(precision: str, result: Mapping[str, Any], name: str, prefix: str) -> list[str]:
    """The score in percent, and by how many points it differs from fp32's, with the interval."""
    if name not in result:
        return ["-", "-"]
    low, high = result[f"{prefix}against_fp32_interval"]
    difference = f"{result[f'{prefix}against_fp32']:+.1f} ({low:+.1f} to {high:+.1f})"
    return [f"{result[name]:.1f} %", "-" if precision == "fp32" else difference]
