# SPDX-License-Identifier: Apache-2.0
"""Whole models compared with engines with NVIDIA's variable-length BERT plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.records import PADFREE, Record, times_of

PLUGINS = "NVIDIA varseqlen plugins"


def plugins(records: Sequence[Record], names: Mapping[str, str]) -> tuple[list[str], list[list[str]], list[Record]]:
    """One row per target that both ran; returned last: the record of every row.

    Args:
        records: those of whole models.
        names: a model -> its name on the page.
    """
    chosen = [record for record in records if record["set"] == "targets" and PLUGINS in times_of(record)]
    rows = [[_case(record, names), *_cells(times_of(record))] for record in chosen]
    return ["ms per batch", "padfree", "NVIDIA's plugins", "NVIDIA's / padfree"], rows, chosen


def _case(record: Record, names: Mapping[str, str]) -> str:
    batch = record["batch"]
    texts = "1 sequence of" if batch == 1 else f"{batch} sequences of up to"
    return f"{names[record['model']]}, {texts} {record['seq_len']} tokens"


def _cells(times: Mapping[str, float]) -> list[str]:
    return [
        *(f"{times[name]:.{3 if times[name] < 1 else 2}f}" for name in (PADFREE, PLUGINS)),
        f"{times[PLUGINS] / times[PADFREE]:.2f}",
    ]
