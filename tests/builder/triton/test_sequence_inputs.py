# SPDX-License-Identifier: Apache-2.0
"""Repositories of models with inputs that have a row for every sequence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import read_text
from padfree.onnx_tools import rewrite, save_model

from tests.support.sequence_models import with_rows

pytest.importorskip("tritonclient.grpc")

PlanWriter = Callable[..., Path]
ROWS = {"language": [1], "source": [1], "features": [3], "row_id": [1]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_model(rewrite(with_rows(), verify=False).model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_the_encoder_and_the_ensemble_take_them(model: Path, tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (tokenizer / "tokenizer.json").write_text(_small(tokenizer))
    write_repository(model, folder, ServingOptions("m", server="24.11", tokenizer=tokenizer, max_length=16))
    encoder, ensemble = (read_text(folder / name / "config.pbtxt") for name in ("m", "m_text"))
    for config in (encoder, ensemble):
        results = {item.name: list(item.dims) for item in config.input}
        assert {name: results[name] for name in ROWS} == ROWS
        assert not any(item.allow_ragged_batch for item in config.input if item.name in ROWS)
    assert {item.name: item.data_type for item in encoder.input}["features"] == 11  # TYPE_FP32
    step = ensemble.ensemble_scheduling.step[1]
    assert {name: step.input_map[name] for name in ROWS} == {name: name for name in ROWS}
    (sample,) = encoder.model_warmup
    assert {name: list(sample.inputs[name].dims) for name in ROWS} == ROWS


def _small(tokenizer: Path) -> str:
    """The tokenizer, reduced to the 20 tokens that the model's table has rows for."""
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: number for word, number in vocabulary.items() if number < 20}
    return json.dumps(content)


def test_the_server_takes_an_axis_away_where_the_engine_has_none(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path
) -> None:
    rows = [
        {"name": "language", "role": "per_sequence", "limit": 5, "dtype": "int32"},
        {"name": "features", "role": "per_sequence", "limit": None, "dtype": "float32", "width": 3},
    ]
    plan = write_plan(inputs=[*packed_metadata["inputs"], *rows])
    write_repository(plan, tmp_path / "models", ServingOptions("m", "tensorrt", server="24.11"))
    config = read_text(tmp_path / "models" / "m" / "config.pbtxt")
    results = {item.name: (list(item.dims), item.HasField("reshape")) for item in config.input}
    assert (results["language"], results["features"]) == (([1], True), ([3], False))
    assert {name for item in config.batch_input for name in item.target_name} == {"seq_lens"}
