# SPDX-License-Identifier: Apache-2.0
"""The engine for benchmarks of what is around it: BERT-base with random weights, fp16, packed."""

from __future__ import annotations

from pathlib import Path

from padfree.builder import build_engine
from padfree.onnx_tools import save_model, synthetic


def build_base(folder: Path, *, max_batch: int, max_seq_len: int, timing_cache: str) -> Path:
    """Builds the engine in a folder and returns the plan."""
    model, plan = folder / "model.onnx", folder / "model.plan"
    save_model(synthetic.bert_model(), model)
    build_engine(
        model,
        plan,
        precision="fp16",
        verify=False,
        max_batch=max_batch,
        max_seq_len=max_seq_len,
        timing_cache=timing_cache,
    )
    return plan
