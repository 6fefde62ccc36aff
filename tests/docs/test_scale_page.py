# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/guide/scale.md runs: the pool of sessions on the CPU, PyTorch's part if PyTorch is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session
from padfree.runtime.pool import DevicePool

from tests.support.pages import text

PAGE = text("scale", "training")


def examples() -> list[str]:
    match = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(match) == 4
    return match


def run(source: str, **scope: Any) -> dict[str, Any]:
    exec(compile(source, "docs/guide/scale.md", "exec"), scope)
    return scope


def test_the_pages_pool_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["optimize", "model.onnx", "-o", "packed.onnx", "--no-verify"]) == 0
    capsys.readouterr()

    def on_the_cpu(path: str) -> DevicePool:
        assert path == "model.plan"
        return DevicePool({name: Session("packed.onnx") for name in ("one", "two")})

    monkeypatch.setattr(DevicePool, "open", on_the_cpu)
    scope = run(examples()[0])
    assert [row.shape[0] for row in scope["results"]["last_hidden_state"]] == [3, 2]
    assert scope["answer"]["last_hidden_state"].shape[0] == 4
    assert capsys.readouterr().out == "['one', 'two'] {} 2\n"


def test_balanced_batches(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run(examples()[1])
    assert scope["imbalance"].mean() < 0.02
    assert "% mean" in capsys.readouterr().out


@pytest.mark.needs_torch
def test_pytorch() -> None:
    pytest.importorskip("torch")
    lengths = np.arange(100) + 1
    scope = run(examples()[2], lengths=lengths, world_size=2, rank=1, dataset=list(range(100)))
    rows = [row for batch in scope["loader"] for row in batch.tolist()]
    assert len(rows) == 64
    assert len(set(rows)) < 100


@pytest.mark.needs_torch
def test_sentence_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sentence_transformers", "accelerate", "datasets"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    lengths = [3] * 8
    scope = run(examples()[3], lengths=lengths)
    result = scope["arguments"].batch_sampler(list(range(8)), batch_size=2, drop_last=False, seed=1)
    assert sorted(row for batch in result for row in batch) == list(range(8))
