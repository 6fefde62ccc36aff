# SPDX-License-Identifier: Apache-2.0
"""`padfree bench` on a GPU, with the peers that need only TensorRT and PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.peers.catalog import GPU_PEERS

pytestmark = pytest.mark.gpu


def test_bench_measures_engines_and_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    names = ("tensorrt-strong", "padded-interface", "torch-eager", "limit")
    command = [
        "bench",
        str(DEMO_DATA / "bert_tiny.onnx"),
        "--batch",
        "4",
        "--seq-len",
        "48",
        "--peers",
        ",".join(names),
    ]
    assert main([*command, "--json", str(out)]) == 0, capsys.readouterr().err
    record = json.loads(out.read_text())
    assert list(record["unavailable"]) == [GPU_PEERS["torch-eager"].title]  # the model has no PyTorch original
    assert set(record["peers_ms"]) == {GPU_PEERS[name].title for name in names[:2]}
    assert 0 < record["limit_ms"] < record["ours_ms"]
    assert set(record["all_times_ms"]["padfree"]) == {"plain", "CUDA graph"}


def test_fp8_is_measured_beside_tensorrts_own_gemms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    names = ("tensorrt-fp8", "tensorrt-fp8-attention", "packed-tensorrt-fp8", "limit")
    command = ["bench", str(DEMO_DATA / "bert_tiny.onnx"), "--batch", "4", "--seq-len", "48", "--precision", "fp8"]
    assert main([*command, "--peers", ",".join(names), "--json", str(out)]) == 0, capsys.readouterr().err
    record = json.loads(out.read_text())
    assert record["unavailable"] == {}
    assert set(record["peers_ms"]) == {GPU_PEERS[name].title for name in names[:3]}
    assert record["limit_ms"] > 0
