# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/reference/runtime.md runs in the page's order: all of it on a GPU, on the CPU what needs none."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import build_engine, cli
from padfree.builder.demo.demo import DEMO_DATA

from tests.support.pages import text

PAGE = text("runtime", "runtime-gpu")
NEEDS_A_GPU = ("torch", "pycuda", "backend", "tensorrt")


def examples() -> list[str]:
    match = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(match) >= 8
    return match


def run(sources: list[str]) -> dict[str, Any]:
    """Executes examples one after the other; later ones may use names from earlier ones."""
    scope: dict[str, Any] = {}
    for source in sources:
        exec(compile(source, "docs/reference/runtime.md", "exec"), scope)
    return scope


def test_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["optimize", "model.onnx", "-o", "packed.onnx", "--no-verify"]) == 0
    plain = [source for source in examples() if not any(word in source for word in NEEDS_A_GPU)]
    scope = run([source.replace("model.plan", "packed.onnx") for source in plain])
    assert [len(answer["last_hidden_state"]) for answer in scope["answers"]] == [1, 2]
    assert scope["outputs"]["last_hidden_state"].shape[0] == 8
    scope["session"].close()


@pytest.mark.gpu
@pytest.mark.needs_tensorrt
def test_the_pages_examples_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    build_engine(DEMO_DATA / "bert_tiny.onnx", "model.plan", precision="fp16", verify=False, max_seq_len=128)
    has_pycuda = importlib.util.find_spec("pycuda") is not None
    scope = run([source for source in examples() if has_pycuda or "pycuda" not in source])
    scope["stream"].synchronize()
    assert scope["hidden"].shape[0] == (3 if has_pycuda else 5)
    assert len(scope["times_ms"]) == 100
    assert scope["engine"] is not None
    scope["session"].close()
