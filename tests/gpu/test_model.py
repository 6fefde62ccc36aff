# SPDX-License-Identifier: Apache-2.0
"""padfree.Model of a folder on a GPU: its engine is built once, and gives the CPU's answers."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np
import padfree
import pytest

from tests.support.folders import DEMO_DATA, ENCODER, TOKENIZER, write_folder

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LEAST_COSINE = 0.999  # fp16 against fp32, random weights
AGAIN_S = 20.0
"""Limit for opening a kept engine, including the start of TensorRT."""


def test_a_folder_becomes_an_engine_that_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(
        tmp_path / "model", modules=[("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})], max_seq_length=64
    )
    texts = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()
    with padfree.Model(folder, backend="onnxruntime") as model:
        wanted = model.encode(texts)
    assert not caplog.records
    with padfree.Model(folder, engines=tmp_path / "engines") as model:
        assert model.session.metadata.engine is not None
        found = model.encode(texts)
    assert "building an engine for" in caplog.text
    assert (wanted * found).sum(axis=1).min() > LEAST_COSINE
    caplog.clear()
    start = time.monotonic()
    with padfree.Model(folder, engines=tmp_path / "engines") as model:
        np.testing.assert_array_equal(model.encode(texts), found)
    assert time.monotonic() - start < AGAIN_S
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(list((tmp_path / "engines").glob("*/model.plan"))) == 1


def test_an_exported_file_keeps_the_type_that_was_asked_for(tmp_path: Path) -> None:
    with padfree.Model(
        ENCODER, tokenizer=TOKENIZER, pooling="mean", precision="fp32", engines=tmp_path / "engines"
    ) as model:
        assert model.session.metadata.precision == "fp32"
        found = model.encode(["a cat", "rain"])
    with padfree.Model(ENCODER, tokenizer=TOKENIZER, pooling="mean", backend="onnxruntime") as model:
        np.testing.assert_allclose(found, model.encode(["a cat", "rain"]), atol=1e-3)
