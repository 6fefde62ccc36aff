# SPDX-License-Identifier: Apache-2.0
"""Layers of Qwen3 and EmbeddingGemma at their real widths: engines whose GEMMs take over norms against others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.folders.source import opened

from benchmarks.definitions import CONFIGS, write_folder

from .test_linear import run, skip_elsewhere

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LAYERS = 3
WORDS = 1000
LENGTHS = ([512] * 4 + [1, 300, 77], [32], [3, 0, 5], [64, 65, 33, 2, 100])
SMALLEST_COSINE = 0.999
"""The least cosine of a token's results to the other engine's; both round to 8 bits in every layer."""
FIRST = {"PadfreeTokenRows": 1, "PadfreeSchedule": 0}
KERNELS = {
    "qwen3-0.6b": {**FIRST, "PadfreeQkNormRotary": 0, "PadfreePostNorm": 0, "PadfreeLayerNorm": 1},
    "embedding-gemma": {**FIRST, "PadfreeQkNormRotary": 0, "PadfreePostNorm": 2 * LAYERS, "PadfreeLayerNorm": 1},
}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", KERNELS)
def test_layers(name: str, precision: str, tmp_path: Path) -> None:
    skip_elsewhere()
    config: dict[str, Any] = {**CONFIGS[name], "num_hidden_layers": LAYERS, "vocab_size": WORDS}
    if "layer_types" in config:
        config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    rng = np.random.default_rng(1)
    requests = [[rng.integers(0, WORDS, length) for length in lengths] for lengths in LENGTHS]
    answers = []
    with opened(write_folder(config, tmp_path)) as source:
        for linear in ("padfree", "tensorrt"):
            plan = tmp_path / f"{linear}.plan"
            built = build_engine(source.path, plan, linear=linear, precision=precision, max_batch=8, max_seq_len=512)
            layers = built["engine"]["plugin_layers"]
            if linear == "padfree":
                assert {kernel: layers.get(kernel, 0) for kernel in KERNELS[name]} == KERNELS[name]
            answers.append(run(plan, requests))
    for ours, theirs in zip(*answers, strict=True):
        a, b = (np.asarray(item, np.float64).reshape(-1, item.shape[-1]) for item in (ours, theirs))
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)).clip(1e-30)
        assert len(a) == 0 or cosines.min() > SMALLEST_COSINE
