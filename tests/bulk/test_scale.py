# SPDX-License-Identifier: Apache-2.0
"""The cost of a job grows with its shards and with its inputs, but not with the product of both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from padfree.bulk import Request
from padfree.bulk.locations import Location
from padfree.bulk.manifest import InputFile, Manifest

from tests.support.bulk_jobs import run_here, texts

INPUTS, TEXTS_EACH, SHARD_ROWS = 12, 40, 4


def test_every_shard_costs_the_same_however_many_there_are(
    tmp_path: Path, embedder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = []
    for at in range(INPUTS):
        inputs.append(tmp_path / f"{at:02d}.txt")
        inputs[-1].write_text("\n".join(texts(TEXTS_EACH, seed=at)), encoding="utf-8")
    calls: Counter[str] = Counter()
    whole, location = Manifest.to_dict, InputFile.location

    def counted_whole(self: Manifest) -> dict[str, object]:
        calls["whole manifest"] += 1
        return whole(self)

    def counted_location(self: InputFile) -> Location:
        calls["location of an input"] += 1
        return location(self)

    monkeypatch.setattr(Manifest, "to_dict", counted_whole)
    monkeypatch.setattr(InputFile, "location", counted_location)
    job = Request([str(path) for path in inputs], str(tmp_path / "out"), embedder, shard_rows=SHARD_ROWS)
    report = run_here(job).report
    assert report.shards == INPUTS * TEXTS_EACH / SHARD_ROWS
    assert calls["whole manifest"] <= 4
    assert calls["location of an input"] <= 2 * report.shards + 4 * INPUTS
