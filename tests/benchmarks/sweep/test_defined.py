# SPDX-License-Identifier: Apache-2.0
"""Models that are measured without torch have the tensors of transformers, and a sweep finds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.onnx_tools import load_model

from benchmarks import definitions as measured
from benchmarks.sweep.cases import SETS
from benchmarks.sweep.measurement import model_reader
from tests.support import tiny_folders

TINY: Mapping[str, Any] = {
    "n_embd": 32, "n_head": 2, "n_layer": 2, "n_inner": 48, "hidden_size": 32, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 64,
    "num_key_value_heads": 1, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


@pytest.mark.parametrize("name", ["nomic", "gte", "jinav3"])
def test_tensors_are_those_that_transformers_writes(name: str) -> None:
    reference = tiny_folders.read(name)
    theirs = {key: shape for key, shape in reference.tensors.items() if "pooler" not in key}
    assert dict(measured.shapes_of(reference.config)) == theirs


@pytest.mark.parametrize("name", list(measured.CONFIGS))
def test_a_sweep_reads_them_without_torch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = measured.CONFIGS[name]
    tiny = {**config, **{key: value for key, value in TINY.items() if key in config}}
    monkeypatch.setattr(measured, "CONFIGS", {name: tiny})
    model = model_reader(tmp_path)(name, "fp16")
    assert model.gemms
    again = model_reader(tmp_path)(name, "fp16")
    assert load_model(again.path) == load_model(model.path)
    weights = [measured.draw(key, shape) for key, shape in measured.shapes_of(tiny).items()]
    assert all(np.all(array != 0) for array in weights)


def test_every_model_has_cases() -> None:
    cases = [(case.model, case.batch, case.seq_len) for case in (*SETS["folders"], *SETS["decoders"])]
    (wide,) = {case.model for case in SETS["large"]}
    others = [name for name in measured.CONFIGS if name != wide]
    assert cases == [(name, *size) for name in others for size in ((16, 512), (1, 32))]
