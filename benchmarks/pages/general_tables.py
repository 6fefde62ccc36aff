# SPDX-License-Identifier: Apache-2.0
"""The table of engines with the kernels for GPUs other than Hopper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.records import PADFREE, TENSORRT, Record, earlier_times_of, in_earlier_run, times_of

from .markdown import UNMEASURED, ms, with_notes

PADDED = "padded TensorRT"
VARIANTS: Mapping[str, str] = {
    PADFREE: "padfree's GEMMs, ms",
    "TensorRT GEMMs": "TensorRT's, ms",
    "sm_80 GEMMs": "TensorRT's for sm_80, ms",
    PADDED: "padded TensorRT, ms",
}
"""Variants as benchmarks.engine.general records them, and their columns."""


def general(records: Sequence[Record], others: Iterable[Record]) -> str:
    """A row per engine; padded TensorRT's time of another run is in brackets. `others`: records of end_to_end.jsonl."""
    if not records:
        return UNMEASURED
    padded = {
        (record["model"], record["batch"], record["seq_len"], record["tokens"], record["precision"]): time
        for record in others
        if (time := (earlier_times_of(record) | times_of(record)).get(TENSORRT))
    }

    def cells(record: Record) -> list[str]:
        model, shape, precision = record["case"].split(", ")
        batch, seq_len = map(int, shape.split(" x "))
        times: Mapping[str, float] = record["ms"]
        row = [record["case"], str(record["tokens"]), *(ms(times.get(variant)) for variant in VARIANTS)]
        elsewhere = padded.get((model, batch, seq_len, record["tokens"], precision))
        if PADDED not in times and elsewhere:
            row[-1] = in_earlier_run(ms(elsewhere))
        return row

    return with_notes(["engine", "tokens", *VARIANTS.values()], map(cells, records), records)
