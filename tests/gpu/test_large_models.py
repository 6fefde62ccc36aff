# SPDX-License-Identifier: Apache-2.0
"""Models beyond protobuf's 2 GB as engines: from shards in bf16, passed as a file, checked against onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from padfree.builder import build_engine
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine import preparation_process
from padfree.runtime.plan_files import open_plan

from benchmarks.engine.folder_memory import SHAPES, write_folder

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LAYERS = 4
"""Layers of the 8B shape: with the embeddings these are 2.8 GB."""


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_models_that_lie_in_a_file(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is treated as too large for a message: TensorRT reads its weights from a file next to the graph."""
    named, imported = "engine.preparation_process import serve", "engine import preparation_process as module"
    refusing = "module.serialize = lambda *_: None\nmodule.serve(sys.argv[1], answer)"
    child = preparation_process._CHILD.replace(named, imported).replace("serve(sys.argv[1], answer)", refusing)
    monkeypatch.setattr(preparation_process, "_CHILD", child)
    plan = tmp_path / "model.plan"
    written = build_engine(DEMO_DATA / "bert_tiny.onnx", plan, precision=precision, max_batch=4, max_seq_len=64)
    assert written["check"]["outputs"]
    assert written["engine"]["plan_bytes"] == plan.stat().st_size
    assert open_plan(plan).engine is not None


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_eight_billion_weights_wide(precision: str, tmp_path: Path) -> None:
    shape = SHAPES["qwen3-8b"]
    shape = replace(shape, config={**shape.config, "num_hidden_layers": LAYERS})
    folder = tmp_path / "model"
    assert write_folder(shape, folder) > 1 << 31
    plan = tmp_path / "model.plan"
    words = ["build", str(folder), "-o", str(plan), "--pooling", "lasttoken", "--normalize", "--precision", precision]
    assert main([*words, "--max-batch", "4", "--max-seq-len", "64"]) == 0
    assert open_plan(plan).engine is not None
    assert plan.stat().st_size > 1 << 31
