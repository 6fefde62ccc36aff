# SPDX-License-Identifier: Apache-2.0
"""`padfree rerank` with a model that takes shared prefixes: scores as of each pair alone, and tokens saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import padfree
import pytest
from padfree.builder.cli import main
from pyarrow import parquet

from tests.support.scorers import read, write_scorer

TOLERANCE = 1e-5


def test_pairs_share_their_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, engine = write_scorer("qwen3", tmp_path / "Qwen3-Reranker-0.6B"), tmp_path / "packed.onnx"
    assert main(["optimize", str(folder), "-o", str(engine), "--shared-prefixes", *read("qwen3").options]) == 0
    pairs = [(f"what is number {at % 3}", f"document {at} " + "of words " * (at % 5)) for at in range(40)]
    rows = [json.dumps({"id": at, "query": query, "text": text}) for at, (query, text) in enumerate(pairs)]
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    arguments = ["--input", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out"), "--engine", str(engine)]
    assert main(["rerank", *arguments, "--id", "id", "--shard-rows", "25", "--verify"]) == 0
    report = json.loads((tmp_path / "out" / "_report.json").read_text())
    assert report["tokens_saved"] > 0.5 * report["tokens"]
    assert f"tokens that pairs with the same beginning shared: {report['tokens_saved']}" in capsys.readouterr().out
    table = parquet.read_table(sorted((tmp_path / "out").glob("*.parquet")))
    with padfree.Model(engine) as model:
        alone = [float(model.scores([pair])[0]) for pair in pairs]
    found = dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))
    np.testing.assert_allclose([found[at] for at in range(40)], alone, atol=TOLERANCE, rtol=TOLERANCE)
